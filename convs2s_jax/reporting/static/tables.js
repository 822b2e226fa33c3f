"use strict";
// Tables that are sorted by buttons in their headers.

const shortNumber = (value, digits = 2) => (value === null || value === undefined ? "–" : value.toFixed(digits));

// Renders text given as pieces [text, differs]; those that differ are marked.
const marked = (pieces) => pieces.map(([text, differs]) => (differs ? element("mark", text) : text));

// A table of `columns` ({title, numeric, className, show(row), value(row)}) with buttons that sort where `value` is given.
// Returns {update(rows), more()}. `most` rows are shown at first; `grown` is called with the number shown and the total.
function sortableTable(table, columns, { most = Infinity, grown = () => {}, sorted = null } = {}) {
  let rows = [], order = sorted, shown = most;
  const head = element("tr"), body = element("tbody");
  columns.forEach((column, i) => {
    const cell = element("th", "", { scope: "col" });
    if (column.numeric) cell.className = "number";
    if (column.value) {
      const button = element("button", column.title, { type: "button" });
      button.addEventListener("click", () => {
        order = { column: i, down: order && order.column === i ? !order.down : Boolean(column.numeric) };
        draw();
      });
      cell.append(button);
    } else cell.append(column.title);
    head.append(cell);
  });
  table.replaceChildren(element("thead", [head]), body);

  function draw() {
    [...head.children].forEach((cell, i) => {
      if (!columns[i].value) return;
      const here = order && order.column === i;
      cell.setAttribute("aria-sort", here ? (order.down ? "descending" : "ascending") : "none");
    });
    const ordered = [...rows];
    if (order) {
      const value = columns[order.column].value, sign = order.down ? -1 : 1;
      ordered.sort((a, b) => {
        const one = value(a), other = value(b);
        if (one === null || other === null) return (one === null) - (other === null); // rows without a value come last
        return sign * (typeof one === "string" ? one.localeCompare(other) : one - other);
      });
    }
    const part = ordered.slice(0, shown);
    body.replaceChildren(...part.map((row) => element("tr", columns.map((column) => {
      const cell = element("td", column.show(row));
      if (column.numeric) { cell.className = "number"; cell.dataset.label = column.title; }
      if (column.className) cell.className = column.className;
      return cell;
    }))));
    grown(part.length, ordered.length);
  }
  return {
    update(given) { rows = given; shown = most; draw(); },
    more() { shown += most; draw(); },
  };
}
