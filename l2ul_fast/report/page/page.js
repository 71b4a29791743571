"use strict";
// Tables sort by the column whose heading is pressed, each block by itself; pressed again, the other way round.
// Missing values stay last.
document.querySelectorAll("table.sortable").forEach((table) => {
  const heads = Array.from(table.tHead.rows[0].cells);
  const status = document.getElementById("status");
  const key = (row, column) => {
    const text = row.cells[column].dataset.sort;
    if (text === undefined) return null;
    const number = Number(text);
    return text !== "" && Number.isFinite(number) ? number : text;
  };
  const compare = (a, b) =>
    typeof a === "number" && typeof b === "number"
      ? a - b
      : String(a).localeCompare(String(b), undefined, { numeric: true });
  heads.forEach((head, column) => {
    head.querySelector("button").addEventListener("click", () => {
      const down = head.getAttribute("aria-sort") === "ascending";
      Array.from(table.tBodies).forEach((body) => {
        const rows = Array.from(body.querySelectorAll("tr:not(.block)"), (row) => [key(row, column), row]);
        rows.sort(([a], [b]) => {
          if (a === null || b === null) return (a === null) - (b === null);
          return down ? compare(b, a) : compare(a, b);
        });
        rows.forEach(([, row]) => body.append(row));
      });
      heads.forEach((other) => other.removeAttribute("aria-sort"));
      head.setAttribute("aria-sort", down ? "descending" : "ascending");
      status.textContent = `Sorted by ${head.textContent.trim()}, ${down ? "descending" : "ascending"}.`;
    });
  });
});
window.addEventListener("beforeprint", () => document.querySelectorAll("details").forEach((d) => { d.open = true; }));
