// Make the headings of a sortable table buttons that sort its rows by their column, and back.
for (const table of document.querySelectorAll("table.sortable")) {
  const heads = [...table.tHead.rows[0].cells], body = table.tBodies[0];
  heads.forEach((head, column) => {
    const button = document.createElement("button");
    button.type = "button";
    button.append(...head.childNodes);
    head.append(button);
    button.addEventListener("click", () => {
      const down = head.getAttribute("aria-sort") === "ascending";
      heads.forEach((other) => other.removeAttribute("aria-sort"));
      head.setAttribute("aria-sort", down ? "descending" : "ascending");
      const text = (row) => row.cells[column].textContent;
      const rows = [...body.rows].sort((a, b) => text(a).localeCompare(text(b), "en", { sensitivity: "base" }));
      body.append(...(down ? rows.reverse() : rows));
    });
  });
}
