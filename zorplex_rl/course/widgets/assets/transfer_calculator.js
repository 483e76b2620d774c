function render({ model, el }) {
  const { axes } = model.get("controls");
  let params = model.get("params"), result = null;
  const parameters = (billions) => (billions < 0.1 ? `${1000 * billions} million` : `${billions} billion`);
  const precision = { 1: "1 byte (FP8)", 2: "2 bytes (bfloat16)", 4: "4 bytes (float32)" };
  const controls = {
    billions: slider("Parameters", axes.billions, parameters, moved),
    bytes_each: slider("Each of them", axes.bytes_each, (bytes) => precision[bytes], moved),
  };
  const size = html("p", { class: "zx-heading" }), chart = html("div"), voice = announcer();
  el.replaceChildren(html("section", { class: "zx zx-stack", "aria-label": "Transfer calculator" },
    html("div", { class: "zx-sliders" }, ...Object.values(controls).map(({ root }) => root)), size, chart, voice.root));

  function moved() {
    for (const [key, { value }] of Object.entries(controls)) params = { ...params, [key]: value };
    ask(params);
  }

  function show(answer) {
    result = answer;
    size.textContent = `${answer.size} for one copy`;
    const slowest = answer.rows[0];
    voice.say(`${answer.size}. ${slowest ? `${slowest[0]}: ${slowest[4]}.` : ""}`);
    rows.redraw();
  }

  const rows = drawnToWidth(chart, (width) => { if (result) chart.replaceChildren(times(result.rows, width)); });
  for (const [key, control] of Object.entries(controls)) control.set(params[key]);
  const ask = questions(model, el.firstElementChild, (table, position) => lookUp(table, position), show);
  return () => rows.stop();
}

/** One row for each link: a point on a logarithmic axis of seconds, and the seconds in words. */
function times(links, width) {
  const narrow = width < 560, left = narrow ? 0 : 190, pitch = narrow ? 46 : 32, top = narrow ? 22 : 8, right = 96;
  const low = -3, high = 5, bottom = top + links.length * pitch, height = bottom + 26;
  const x = (seconds) => left + 8 + ((Math.min(Math.max(Math.log10(seconds), low), high) - low) / (high - low)) * (width - left - 8 - right);
  const picture = svg("svg", { viewBox: `0 0 ${width} ${height}`, height, role: "img", "aria-label": `Seconds for one copy. ${links.map(([name, , , , said]) => `${name}: ${said}`).join("; ")}.` });
  for (const [power, text] of [[-3, "1 ms"], [0, "1 s"], [Math.log10(3600), "1 hour"], [Math.log10(86400), "1 day"]]) {
    const at = x(10 ** power);
    picture.append(
      svg("line", { x1: at, x2: at, y1: 0, y2: bottom, style: "stroke:var(--line)" }),
      svg("text", { x: at, y: height - 8, "text-anchor": "middle" }, text));
  }
  links.forEach(([name, rate, measured, seconds, said], row) => {
    const y = top + row * pitch + (narrow ? 10 : 12);
    picture.append(
      svg("text", { x: 0, y: narrow ? y - 14 : y + 4 }, `${name}, ${Number(rate.toPrecision(2))} GB/s`),
      svg("circle", { cx: x(seconds), cy: y, r: 6, "data-seconds": seconds, style: `fill:var(${measured ? "--orange" : "--quiet"})` }),
      svg("text", { x: x(seconds) + 12, y: y + 4, "font-weight": 600 }, said));
  });
  return picture;
}

export default { render };
