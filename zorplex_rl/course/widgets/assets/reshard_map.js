/** 0, 512 B, 1.45 kB, 12 MB: three digits at most. */
function bytesText(bytes) {
  if (bytes === 0) return "0";
  const power = Math.min(Math.floor(Math.log10(bytes) / 3 + 1e-12), 4), value = bytes / 1000 ** power;
  return `${Number(value.toPrecision(3))} ${["B", "kB", "MB", "GB", "TB"][power]}`;
}

function render({ model, el }) {
  const chosen = () => Object.fromEntries(rows.map(({ name, value }) => [name, value]));
  const rows = model.get("data").axes.map(([name, values]) => {
    const row = { name, value: values[0] };
    row.control = choices(name, values, (value) => { row.value = value; draw(); });
    row.control.set(row.value);
    return row;
  });
  const figures = html("dl", { class: "zx-figures" }), table = html("div"), voice = announcer();
  const choosing = rows.some(({ control }) => control.root.querySelectorAll("input").length > 1);
  el.replaceChildren(html("section", { class: "zx zx-stack", "aria-label": "Resharding map" },
    choosing ? html("div", { class: "zx-columns" }, ...rows.map(({ control }) => control.root)) : null, figures, table, voice.root));

  function draw() {
    const { axes, results, sources, destinations } = model.get("data");
    const matrix = lookUp({ axes, results }, chosen()), cells = matrix.flat();
    const total = cells.reduce((sum, bytes) => sum + bytes, 0), most = Math.max(...cells), pairs = cells.filter((bytes) => bytes > 0).length;
    const figure = (name, value, text, remark) => html("div", {}, html("dt", {}, name), html("dd", { "data-value": value }, text), html("dd", { class: "zx-note" }, remark));
    figures.replaceChildren(
      figure("Moved", total, bytesText(total), "in all"),
      figure("Pairs", pairs, String(pairs), `of ${cells.length} exchange something`),
      figure("Largest pair", most, bytesText(most), total ? `${Math.round((100 * most) / total)}% of all` : "nothing moves"));
    voice.say(`${bytesText(total)} moved between ${pairs} pairs.`);
    const cell = (bytes) => html("td", { style: `background:color-mix(in srgb, var(--blue) ${most ? Math.round((55 * bytes) / most) : 0}%, transparent)` }, bytesText(bytes));
    table.replaceChildren(html("table", { class: `zx-table zx-map${matrix[0].length > 4 ? " zx-dense" : ""}` },
      html("caption", {}, `Bytes from each ${sources} to each ${destinations}`),
      html("thead", {}, html("tr", {}, html("th", { scope: "col" }, html("span", { class: "zx-hidden" }, sources)), ...matrix[0].map((_, i) => html("th", { scope: "col" }, html("span", { class: "zx-word" }, `${destinations} `), String(i))))),
      html("tbody", {}, ...matrix.map((row, i) => html("tr", {}, html("th", { scope: "row" }, html("span", { class: "zx-word" }, `${sources} `), String(i)), ...row.map(cell))))));
  }

  model.on("change:data", draw);
  draw();
  return () => model.off("change:data", draw);
}

export default { render };
