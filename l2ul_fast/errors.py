"""Errors whose text is one sentence for the user: the CLI prints them without a traceback."""


class UserError(ValueError):
    """Something the user can put right; the message says what and how."""


class DataError(UserError):
    """A data file or array is missing, damaged or not what it claims to be."""
