function render({ model, el }) {
  const { label, axes } = model.get("controls"), start = model.get("params");
  const sliders = axes.map(([key, name, values]) => [key, slider(name, values, String, moved)]);
  for (const [key, control] of sliders) control.set(start[key]);
  const figures = html("dl", { class: "zx-figures" }), picture = html("div", { style: "overflow-x:auto", tabindex: 0, role: "group", "aria-label": "Figure" }), voice = announcer();
  el.replaceChildren(html("section", { class: "zx zx-stack", "aria-label": label },
    html("div", { class: "zx-sliders" }, ...sliders.map(([, { root }]) => root)),
    figures,
    picture,
    voice.root));

  function moved() {
    ask(Object.fromEntries(sliders.map(([key, control]) => [key, control.value])));
  }
  function show({ figure, numbers }) {
    figures.replaceChildren(...numbers.map(([name, text, note]) => html("div", {}, html("dt", {}, name), html("dd", { "data-value": text }, text), html("dd", { class: "zx-note" }, note))));
    const drawn = document.importNode(new DOMParser().parseFromString(figure, "image/svg+xml").documentElement, true);
    // They serve a figure that stands alone; here its label says the same, and the page has the colours.
    drawn.querySelectorAll("title, style").forEach((part) => part.remove());
    // Narrower, its text would be too small to read; then it scrolls.
    drawn.style.minWidth = `${Math.min(480, drawn.getAttribute("width"))}px`;
    picture.replaceChildren(drawn);
    voice.say(`${numbers.map(([name, text]) => `${name} ${text}`).join(", ")}.`);
  }
  const ask = questions(model, el.firstElementChild, lookUp, show);
}

export default { render };
