// What all widgets draw with. Nothing here computes what is shown: that comes from Python, through a trait or through the table of a static page.

/** An HTML element with attributes and children; null children are left out. */
function html(tag, attributes = {}, ...children) {
  return filled(document.createElement(tag), attributes, children);
}

/** The same for SVG. */
function svg(tag, attributes = {}, ...children) {
  return filled(document.createElementNS("http://www.w3.org/2000/svg", tag), attributes, children);
}

function filled(element, attributes, children) {
  for (const [name, value] of Object.entries(attributes)) {
    if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else if (value !== null && value !== false) element.setAttribute(name, value === true ? "" : value);
  }
  element.append(...children.filter((child) => child !== null && child !== undefined));
  return element;
}

/** 125 s, 15.5 s, 2.25 s, 34 ms: three digits at most. */
function secondsText(value) {
  if (value === 0) return "0 s";
  if (value < 0.9995) return `${Number((1000 * value).toPrecision(2))} ms`;
  return `${value.toFixed(value < 9.995 ? 2 : value < 99.95 ? 1 : 0)} s`;
}

let ids = 0;

/** A labelled native slider over a list of values. `set` moves it without an event; `fix` shows a value that is not in the list, and no thumb, which could only stand at another. */
function slider(name, values, format, onMove) {
  const id = `zx-slider-${Date.now().toString(36)}-${ids++}`;
  const shown = html("span", { class: "zx-value", "aria-hidden": true });
  const note = html("p", { class: "zx-quiet", hidden: true });
  const input = html("input", { id, type: "range", min: 0, max: values.length - 1, step: 1, oninput: () => { show(values[input.valueAsNumber]); onMove(); } });
  const show = (value) => {
    shown.textContent = format(value);
    input.setAttribute("aria-valuetext", format(value));
    input.style.setProperty("--reached", `${(100 * input.valueAsNumber) / Math.max(values.length - 1, 1)}%`);
  };
  const enable = (free) => { input.hidden = !free; note.hidden = free; note.textContent = free ? "" : "fixed by the scenario"; };
  return {
    root: html("div", { class: "zx-slider" }, html("div", { class: "zx-label" }, html("label", { for: id }, name), shown), input, note),
    input,
    get value() { return values[input.valueAsNumber]; },
    set(value) {
      enable(true);
      input.value = values.indexOf(value);
      show(value);
    },
    fix(value) {
      enable(false);
      show(value);
    },
  };
}

/** A row of native radio buttons. `set(null)` leaves all of them off. */
function choices(legend, names, onChoose) {
  const group = `zx-choices-${Date.now().toString(36)}-${ids++}`;
  const inputs = names.map((name) => html("input", { type: "radio", name: group, value: name, onchange: () => onChoose(name) }));
  const labels = names.map((name, i) => html("label", { class: "zx-choice" }, inputs[i], html("span", {}, name)));
  return {
    root: html("fieldset", { class: "zx-choices" }, html("legend", {}, legend), ...labels),
    set(name) { for (const input of inputs) input.checked = input.value === name; },
  };
}

/** A quiet voice for screen readers: says the last of several texts that come in quick succession. */
function announcer() {
  let timer;
  const root = html("p", { class: "zx-hidden", role: "status", "aria-live": "polite" });
  return { root, say(text) { clearTimeout(timer); timer = setTimeout(() => { root.textContent = text; }, 600); } };
}

/** Calls `draw(width in px)` now and whenever the width of `element` changes; returns what redraws it. */
function drawnToWidth(element, draw) {
  let width = 0;
  const redraw = () => { if (width > 0) draw(width); };
  const observer = new ResizeObserver(([entry]) => {
    const now = Math.floor(entry.contentRect.width);
    if (now !== width) { width = now; redraw(); }
  });
  observer.observe(element);
  return { redraw, stop: () => observer.disconnect() };
}

/** Tells `seen(true)` when `element` comes into sight and `seen(false)` when it leaves: what plays rests while nobody sees it. Returns what ends this. */
function inSight(element, seen) {
  const observer = new IntersectionObserver((entries) => seen(entries.at(-1).isIntersecting));
  observer.observe(element);
  return () => observer.disconnect();
}

/** Round numbers from 0 to `end`, about `count` of them. */
function ticks(end, count) {
  if (!(end > 0)) return [0];
  const raw = end / count, power = 10 ** Math.floor(Math.log10(raw));
  const step = power * [1, 2, 5, 10].find((factor) => factor * power >= raw * 0.999);
  return Array.from({ length: Math.floor(end / step + 1e-9) + 1 }, (_, i) => Number((i * step).toPrecision(12)));
}

/**
 * A film of what happened from `from` to `to` (seconds): a button that plays it in `playsFor` ms, a slider over its time, and the scenes side by side.
 * A scene is {name, picture(now, width in px), status(now)}; the status is a sentence, the note below a text or an element. It begins at the share `start`. Returns what stops it.
 */
function film(el, { label, scenes, from = 0, to, start, playsFor, note, plays = false, format = secondsText }) {
  const frames = 240, charts = scenes.map(() => html("div")), said = scenes.map(() => html("p", { class: "zx-quiet" })), voice = announcer();
  let running = 0, shown = 0, resting = false;
  const at = (frame) => from + ((to - from) * frame) / frames, now = () => at(shown);
  const time = slider("Time", Array.from({ length: frames + 1 }, (_, i) => i), (frame) => format(at(frame)), () => { stop(); draw(); tell(); });
  const play = html("button", { class: "zx-button", type: "button", onclick: () => (running ? stop() : go()) }, "Play");
  const unwatched = inSight(el, (isSeen) => {
    if (isSeen && resting) go(true);
    else if (!isSeen && running) { stop(); resting = true; }
  });
  el.replaceChildren(html("section", { class: "zx zx-stack", "aria-label": label },
    html("div", { style: "display:flex;gap:20px;align-items:end" }, play, html("div", { style: "flex:1;min-width:0" }, time.root)),
    html("div", { class: "zx-columns" }, ...scenes.map(({ name }, i) => html("div", { class: "zx-stack", style: "gap:8px" }, html("p", { class: "zx-heading" }, name), charts[i], said[i]))),
    html("p", { class: "zx-quiet" }, note),
    voice.root));
  const drawings = scenes.map(({ picture }, i) => drawnToWidth(charts[i], (width) => charts[i].replaceChildren(picture(now(), width))));

  function draw() {
    if (!running) shown = time.value;
    scenes.forEach(({ status }, i) => { said[i].textContent = status(now()); });
    drawings.forEach(({ redraw }) => redraw());
  }
  function tell() { voice.say(scenes.map(({ name, status }) => `${name}: ${status(now())}`).join(" ")); }
  function stop() { cancelAnimationFrame(running); running = 0; resting = false; play.textContent = "Play"; }
  function go(quietly = false) {
    if (time.value >= frames) time.set(0);
    resting = false;
    const first = time.value;
    let began = null;
    play.textContent = "Pause";
    const next = (clock) => {
      began ??= clock;
      shown = Math.min(first + (frames * (clock - began)) / playsFor, frames);
      time.set(Math.floor(shown));
      draw();
      if (shown < frames) running = requestAnimationFrame(next);
      else { stop(); if (!quietly) tell(); }
    };
    running = requestAnimationFrame(next);
  }

  time.set(Math.round(frames * start));
  draw();
  // Nobody has asked for this film, so it says nothing, and does not move where less motion is wanted.
  if (plays && !matchMedia("(prefers-reduced-motion: reduce)").matches) go(true);
  return () => { stop(); unwatched(); drawings.forEach((drawing) => drawing.stop()); };
}

/** What was packed by `pack` in widget.py. */
async function unpack(packed) {
  const bytes = Uint8Array.from(atob(packed), (character) => character.charCodeAt(0));
  return new Response(new Blob([bytes]).stream().pipeThrough(new DecompressionStream("gzip"))).json();
}

/** `look_up` of widget.py. */
function lookUp({ axes, results }, params) {
  let index = 0;
  for (const [name, values] of axes) index = index * values.length + values.indexOf(params[name]);
  return results[index];
}

/** Shows the answer to the sliders' first position and returns what asks for another: Python where there is a kernel, else the table. */
function questions(model, root, find, show) {
  show(model.get("result"));
  if (typeof window.__MARIMO_STATIC__ === "undefined") {
    model.on("change:result", () => show(model.get("result")));
    return (params) => { model.set("params", params); model.save_changes(); };
  }
  if (!model.get("table")) {
    root.prepend(html("p", { class: "zx-quiet" }, "These sliders answer where the notebook runs: this page was made without their table."));
    return () => {};
  }
  const table = unpack(model.get("table"));
  let newest;
  return async (params) => {
    newest = params;
    const found = find(await table, params);
    if (newest === params) show(found);
  };
}
