const COLOURS = ["grey", "blue", "vermilion", "green", "purple", "orange"];
const DASHES = ["", "", "", "6 3", "2 3", "8 3 2 3"];

function render({ model, el }) {
  const chart = html("div"), legend = html("ul", { class: "zx-legend" }), status = html("p", { class: "zx-quiet" }), voice = announcer();
  const title = html("p", { class: "zx-heading", style: "margin:0" });
  el.replaceChildren(html("section", { class: "zx zx-stack", style: "gap:10px", "aria-label": `Live curve: ${model.get("look").title}` }, title, legend, chart, status, voice.root));
  const text = (value) => (model.get("look").percent ? `${Math.round(100 * value)}%` : String(Number(value.toPrecision(3))));

  const drawing = drawnToWidth(chart, (width) => chart.replaceChildren(curve(model.get("series"), model.get("look"), text, width)));
  let ends = [];
  function show() {
    const { total_steps, title: name } = model.get("look"), series = model.get("series");
    title.textContent = name;
    legend.replaceChildren(...series.map(([line, points], i) => html("li", {},
      html("span", { class: "zx-swatch", style: `background:var(--${COLOURS[i % COLOURS.length]}, #808080)` }), `${line}: `, html("strong", { "data-value": points.at(-1)[1] }, text(points.at(-1)[1])))));
    const steps = series.map(([, points]) => points.at(-1)[0]);
    // Of the line that grew.
    const step = steps.findLast((end, i) => ends.length && end !== ends[i]) ?? Math.max(...steps);
    ends = steps;
    status.textContent = steps.length ? `step ${step} of ${total_steps}` : "no step yet";
    drawing.redraw();
  }
  let said = -1;
  function shown() {
    show();
    const steps = model.get("series").map(([, points]) => points.at(-1)[0]), tenth = Math.floor((10 * Math.max(0, ...steps)) / model.get("look").total_steps);
    if (tenth !== said) voice.say(`${status.textContent}. ${legend.textContent}`);
    said = tenth;
  }
  model.on("change:series", shown);
  model.on("change:look", shown);
  show();
  return () => { drawing.stop(); model.off("change:series", shown); model.off("change:look", shown); };
}

function curve(series, { total_steps, title, percent }, text, width) {
  const left = 44, right = 12, top = 8, bottom = 34, height = Math.min(300, Math.max(200, width * 0.4));
  const values = series.flatMap(([, points]) => points.map(([, value]) => value));
  const low = percent ? 0 : Math.min(...values, 0), high = percent || !values.length ? 1 : Math.max(...values, low + 1e-9);
  const x = (step) => left + ((width - left - right) * step) / Math.max(total_steps, 1), y = (value) => top + (height - top - bottom) * (1 - (value - low) / (high - low));
  const said = series.map(([name, points]) => `${name}: ${text(points[0][1])} at step ${points[0][0]}, ${text(points.at(-1)[1])} at step ${points.at(-1)[0]}`);
  const picture = svg("svg", { viewBox: `0 0 ${width} ${height}`, height, role: "img", "aria-label": `${title} over training steps. ${said.join(". ") || "No point yet"}.` });
  for (const tick of percent ? [0, 0.25, 0.5, 0.75, 1] : ticks(high - low, 4).map((tick) => tick + low)) {
    picture.append(svg("line", { class: "zx-grid", x1: left, x2: width - right, y1: y(tick), y2: y(tick) }), svg("text", { x: left - 8, y: y(tick) + 4, "text-anchor": "end" }, text(tick)));
  }
  for (const tick of ticks(total_steps, Math.min(total_steps, width < 560 ? 4 : 8))) picture.append(svg("text", { x: x(tick), y: height - 16, "text-anchor": "middle" }, String(tick)));
  picture.append(svg("text", { x: width - right, y: height - 1, "text-anchor": "end" }, "training step"));
  series.forEach(([, points], i) => {
    const colour = `var(--${COLOURS[i % COLOURS.length]}, #808080)`, last = points.at(-1);
    picture.append(
      svg("polyline", { points: points.map(([step, value]) => `${x(step).toFixed(1)},${y(value).toFixed(1)}`).join(" "), "stroke-dasharray": DASHES[i % DASHES.length], style: `fill:none;stroke:${colour};stroke-width:${i ? 2.2 : 1.4};stroke-linejoin:round` }),
      // A few points are marked: the straight lines between them were not measured.
      ...(points.length > 8 ? [last] : points).map(([step, value]) => svg("circle", { cx: x(step), cy: y(value), r: 3.5, style: `fill:${colour}` })));
  });
  return picture;
}

export default { render };
