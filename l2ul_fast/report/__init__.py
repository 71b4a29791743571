"""Tables, plots and pages made from records; nothing here measures anything."""
