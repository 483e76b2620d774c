function render({ model, el }) {
  const { title, knobs } = model.get("controls");
  let params = model.get("params"), result = null;
  const sliders = knobs.map(([name, label, values, texts]) => {
    const control = slider(label, values, (value) => texts[values.indexOf(value)], () => { params = { ...params, [name]: control.value }; ask(params); });
    control.set(params[name]);
    return control;
  });
  const figures = html("dl", { class: "zx-figures" }), chart = html("div"), sentence = html("p"), voice = announcer();
  const picture = html("div", { style: "overflow-x:auto", tabindex: 0, role: "group", "aria-label": "Figure" });
  el.replaceChildren(html("section", { class: "zx zx-stack", "aria-label": title },
    html("p", { class: "zx-heading", style: "margin:0" }, title),
    html("div", { class: "zx-sliders" }, ...sliders.map(({ root }) => root)),
    figures, picture, chart, sentence, voice.root));

  function show(answer) {
    result = answer;
    const { numbers, figure, said } = answer;
    figures.hidden = !numbers.length;
    figures.replaceChildren(...numbers.map(([name, text, note]) => html("div", {}, html("dt", {}, name), html("dd", { "data-value": text }, text), html("dd", { class: "zx-note" }, note))));
    picture.hidden = !figure;
    if (figure) picture.replaceChildren(inPage(figure));
    sentence.textContent = said;
    sentence.hidden = !said;
    chart.hidden = !answer.panels.length;
    voice.say([...numbers.map(([name, text]) => `${name} ${text}.`), said].join(" "));
    drawing.redraw();
  }

  const drawing = drawnToWidth(chart, (width) => { if (result) chart.replaceChildren(...result.panels.map((panel) => bars(panel, width))); });
  const ask = questions(model, el.firstElementChild, lookUp, show);
  return drawing.stop;
}

/** An SVG or HTML of Python as a part of this page. */
function inPage(figure) {
  if (!figure.startsWith("<svg")) {
    const written = html("div");
    written.innerHTML = figure;
    return written;
  }
  const drawn = document.importNode(new DOMParser().parseFromString(figure, "image/svg+xml").documentElement, true);
  // They serve a figure that stands alone; here its label says the same, and the page has the colours.
  drawn.querySelectorAll("title, style").forEach((part) => part.remove());
  // Narrower, its text would be too small to read; then it scrolls.
  drawn.style.minWidth = `${Math.min(480, drawn.getAttribute("width"))}px`;
  return drawn;
}

/** One panel: a row for every bar, all from the same zero. */
function bars({ title, bars: rows, most, least }, width) {
  const narrow = width < 480, left = narrow ? 118 : 190, right = narrow ? 62 : 74, head = 28, pitch = 28, thick = 18;
  const height = head + rows.length * pitch + 8, across = width - left - right;
  const x = (value) => left + (across * (value - least)) / (most - least || 1);
  const said = rows.map(({ name, text }) => `${name} ${text}`).join(", ");
  const picture = svg("svg", { viewBox: `0 0 ${width} ${height}`, height, role: "img", "aria-label": `${title}: ${said}.` },
    svg("text", { x: 0, y: 16, "font-weight": 600, "font-size": 14 }, title));
  rows.forEach(({ name, value, text, colour }, row) => {
    const y = head + row * pitch, middle = y + thick / 2 + 4, from = x(Math.min(value, 0)), to = x(Math.max(value, 0));
    picture.append(
      svg("text", { x: left - 10, y: middle, "text-anchor": "end" }, name),
      svg("rect", { x: from, y, width: Math.max(to - from, 0.6), height: thick, rx: 2, style: `fill:var(--${colour === "grey" ? "quiet" : colour})`, "data-value": value }),
      svg("text", { x: width, y: middle, "text-anchor": "end" }, text));
  });
  picture.append(svg("line", { class: "zx-end", x1: x(0), x2: x(0), y1: head - 4, y2: height - 6 }));
  return picture;
}

export default { render };
