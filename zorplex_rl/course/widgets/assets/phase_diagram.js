/** 0.0004 as 4e-4. */
const rateText = (rate) => String(rate);
const percent = (share) => `${Math.round(100 * share)}%`;

function render({ model, el }) {
  const { losses, rates, lags, cells, before, label } = model.get("data");
  const find = (loss, rate, lag) => cells.find((cell) => cell.loss === loss && cell.learning_rate === rate && cell.lag === lag);
  const nameOf = Object.fromEntries(losses), group = `zx-phase-${Date.now().toString(36)}-${ids++}`;
  const said = (cell) => `${nameOf[cell.loss]}, learning rate ${rateText(cell.learning_rate)}, lag ${cell.lag}`;
  const isChosen = (cell) => Object.entries(model.get("chosen")).every(([name, value]) => cell[name] === value);

  // Blue above the accuracy before training, vermilion below it; the further away, the stronger.
  const shade = ({ accuracy }) => {
    const better = accuracy >= before, far = better ? (accuracy - before) / (1 - before) : (before - accuracy) / before;
    return `background:color-mix(in srgb, var(--${better ? "blue" : "vermilion"}) ${Math.round(5 + 50 * far)}%, transparent)`;
  };
  const square = ([loss, name]) => html("table", { class: "zx-table zx-phase" },
    html("caption", {}, name),
    html("thead", {}, html("tr", {}, html("th", { scope: "col" }, "rate"), ...lags.map((lag) => html("th", { scope: "col" }, `lag ${lag}`)))),
    html("tbody", {}, ...rates.map((rate) => html("tr", {}, html("th", { scope: "row" }, rateText(rate)), ...lags.map((lag) => cellOf(find(loss, rate, lag)))))));
  const cellOf = (cell) => {
    if (!cell) return html("td", {}, html("span", { class: "zx-hidden" }, "not recorded"));
    const input = html("input", { type: "radio", name: group, checked: isChosen(cell), "aria-label": `${said(cell)}: accuracy ${percent(cell.accuracy)}`, onchange: () => choose(cell) });
    return html("td", {}, html("label", { style: shade(cell) }, input, html("span", {}, percent(cell.accuracy))));
  };
  const choose = ({ loss, lag, learning_rate }) => {
    model.set("chosen", { loss, lag, learning_rate });
    model.save_changes();
    show();
  };

  const heading = html("p", { class: "zx-heading", style: "margin:0" }), figures = html("dl", { class: "zx-figures" }), chart = html("div"), voice = announcer();
  const swatch = (colour) => html("span", { class: "zx-swatch", style: `background:var(--${colour})` });
  const legend = html("ul", { class: "zx-legend" }, html("li", {}, swatch("blue"), "held-out accuracy, a shade for each seed"), html("li", {}, swatch("purple"), "effective sample size of the batch's episodes, dashed"));
  el.replaceChildren(html("section", { class: "zx zx-stack", "aria-label": "Phase diagram of staleness" },
    html("div", { class: "zx-phases", role: "radiogroup", "aria-label": "Loss, learning rate and lag" }, ...losses.map(square)),
    html("p", { class: "zx-quiet" }, `Held-out accuracy after the last step, mean of all seeds. Blue: better than before training (${percent(before)}); vermilion: worse. Choose a cell.`),
    heading, figures, legend, chart, html("p", { class: "zx-quiet" }, label), voice.root));
  const drawing = drawnToWidth(chart, (width) => chart.replaceChildren(trials(chosen(), model.get("data"), said(chosen()), width)));
  const chosen = () => cells.find(isChosen) ?? cells[0];

  function show() {
    const cell = chosen(), accuracies = cell.accuracies;
    const figure = (name, value, remark) => html("div", {}, html("dt", {}, name), html("dd", { "data-value": value }, percent(value)), html("dd", { class: "zx-note" }, remark));
    heading.textContent = said(cell);
    figures.replaceChildren(
      figure("Mean accuracy", cell.accuracy, `of ${accuracies.length} seed${accuracies.length > 1 ? "s" : ""}${cell.diverged ? `, ${cell.diverged} of which diverged` : ""}`),
      figure("Worst seed", Math.min(...accuracies), "after the last step"),
      figure("Best seed", Math.max(...accuracies), "after the last step"),
      figure("Sample size", Math.min(...cell.shares.flat()), "lowest of any batch, effective share of episodes"));
    voice.say(`${said(cell)}: mean accuracy ${percent(cell.accuracy)}.`);
    drawing.redraw();
  }
  model.on("change:chosen", show);
  show();
  return () => { drawing.stop(); model.off("change:chosen", show); };
}

function trials({ steps, curves, shares }, { steps: total, before }, said, width) {
  const left = 48, right = 12, top = 8, bottom = 34, height = Math.min(280, Math.max(200, width * 0.32));
  const x = (step) => left + ((width - left - right) * step) / total, y = (value) => top + (height - top - bottom) * (1 - value);
  const last = curves.map((curve) => (curve.length ? percent(curve.at(-1)) : "none")).join(", ");
  const picture = svg("svg", { viewBox: `0 0 ${width} ${height}`, height, role: "img", "aria-label": `${said}: accuracy over training steps, at the end ${last}; lowest effective sample size ${percent(Math.min(...shares.flat()))}.` });
  for (const tick of [0, 0.25, 0.5, 0.75, 1]) {
    picture.append(svg("line", { class: "zx-grid", x1: left, x2: width - right, y1: y(tick), y2: y(tick) }), svg("text", { x: left - 8, y: y(tick) + 4, "text-anchor": "end" }, percent(tick)));
  }
  picture.append(svg("line", { x1: left, x2: width - right, y1: y(before), y2: y(before), "stroke-dasharray": "2 3", style: "stroke:currentColor" }), svg("text", { x: left + 4, y: y(before) + 14 }, "before training"));
  for (const tick of ticks(total, width < 560 ? 4 : 8)) picture.append(svg("text", { x: x(tick), y: height - 16, "text-anchor": "middle" }, String(tick)));
  picture.append(svg("text", { x: width - right, y: height - 1, "text-anchor": "end" }, "training step"));
  const line = (values, colour, dash, seed) => svg("polyline", { points: values.map((value, i) => `${x(steps[i]).toFixed(1)},${y(value).toFixed(1)}`).join(" "), "stroke-dasharray": dash, style: `fill:none;stroke:var(--${colour});stroke-opacity:${1 - (0.7 * seed) / curves.length};stroke-width:2;stroke-linejoin:round` });
  picture.append(...shares.map((values, seed) => line(values, "purple", "6 3", seed)), ...curves.map((values, seed) => line(values, "blue", "", seed)));
  return picture;
}

export default { render };
