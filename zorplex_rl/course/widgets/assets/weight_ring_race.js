const VERSION_COLOURS = ["blue", "orange", "green", "purple"];
const OUTCOMES = { whole: ["whole", "green"], "torn, again": ["torn, found out and read again", "orange"], "torn, used": ["torn, and used", "vermilion"] };
const plural = (count, noun) => `${count} ${noun}${count === 1 ? "" : "s"}`;

function render({ model, el }) {
  const { axes } = model.get("controls");
  let params = model.get("params"), result = null, timer = null, resting = false;
  const first = 47;

  const controls = {
    slots: slider("Slots", axes.slots, String, moved),
    ticks_per_chunk: slider("Reader, per chunk", axes.ticks_per_chunk, (value) => plural(value, "tick"), moved),
    pause: slider("Writer's pause", axes.pause, (value) => plural(value, "tick"), moved),
  };
  const seqlock = choices("The reader", ["uses what arrives", "checks the header again (seqlock)"], (name) => { params = { ...params, seqlock: name.includes("seqlock") }; ask(params); });
  const tick = slider("Tick", Array.from({ length: model.get("result").frames.length }, (_, i) => i), String, () => draw());
  const play = html("button", { class: "zx-button", type: "button", onclick: toggle }, "Play");
  const figures = html("dl", { class: "zx-figures" }), chart = html("div"), strip = html("div"), voice = announcer();
  const legend = html("ul", { class: "zx-legend" }, ...Object.values(OUTCOMES).map(([name, colour]) => html("li", {}, html("span", { class: "zx-swatch", style: `background:var(--${colour})` }), name)));
  el.replaceChildren(html("section", { class: "zx zx-stack", "aria-label": "Weight ring" },
    seqlock.root,
    html("div", { class: "zx-sliders" }, ...Object.values(controls).map(({ root }) => root)),
    figures, chart,
    html("div", { class: "zx-stack", style: "gap:8px" },
      html("div", { style: "display:flex;gap:20px;align-items:end" }, play, html("div", { style: "flex:1;min-width:0" }, tick.root)),
      html("p", { class: "zx-heading", style: "margin:6px 0 0" }, "All copies of the reader"), legend, strip),
    voice.root));

  function moved() {
    for (const [key, { value }] of Object.entries(controls)) params = { ...params, [key]: value };
    ask(params);
  }

  const unwatched = inSight(el, (isSeen) => {
    if (isSeen ? resting && !timer : timer) { toggle(); resting = !isSeen; }
  });

  function toggle() {
    resting = false;
    if (timer) { clearInterval(timer); timer = null; play.textContent = "Play"; return; }
    if (tick.value === result.frames.length - 1) tick.set(0);
    play.textContent = "Pause";
    timer = setInterval(() => {
      if (tick.value >= result.frames.length - 1) return toggle();
      tick.set(tick.value + 1);
      draw();
    }, 160);
  }

  function show(answer) {
    result = answer;
    const figure = (name, value, note) => html("div", {}, html("dt", {}, name), html("dd", { "data-value": value }, String(value)), html("dd", { class: "zx-note" }, note));
    figures.replaceChildren(
      figure("Published", answer.published, `versions, in all ${answer.frames.length} ticks`),
      figure("Whole", answer.whole, "copies of one version"),
      figure("Torn, found out", answer.torn_found, "thrown away, read again"),
      figure("Torn, used", answer.torn_used, "two versions in one model"));
    voice.say(`${plural(answer.whole, "copy").replace("copys", "copies")} whole, ${answer.torn_found} torn and found out, ${answer.torn_used} torn and used.`);
    draw();
  }

  const slots = drawnToWidth(chart, (width) => { if (result) chart.replaceChildren(ring(result.frames[tick.value], width, params.seqlock)); });
  const copies = drawnToWidth(strip, (width) => { if (result) strip.replaceChildren(history(result.frames, tick.value, width)); });
  function draw() { slots.redraw(); copies.redraw(); }

  for (const [key, control] of Object.entries(controls)) control.set(params[key]);
  seqlock.set(params.seqlock ? "checks the header again (seqlock)" : "uses what arrives");
  tick.set(first);
  const ask = questions(model, el.firstElementChild, (table, position) => lookUp(table, position), show);
  return () => { clearInterval(timer); unwatched(); slots.stop(); copies.stop(); };
}

/** The slots of the ring and the reader's copy at one tick, chunk by chunk; a chunk shows the version that it belongs to. Sequences are shown where they are used. */
function ring([slots, sequences, writing, reading, staging, event], width, numbered) {
  const left = width < 560 ? 66 : 150, chunk = (width - left) / staging.length, tall = 30, pitch = 58, top = 16;
  const height = top + slots.length * pitch + tall + 4;
  const where = (place) => (place ? `slot ${place[0]}, chunk ${place[1] + 1}` : "nowhere, it pauses");
  const say = (chunks) => chunks.map((version) => (version < 0 ? "empty" : version)).join(" ");
  const picture = svg("svg", {
    viewBox: `0 0 ${width} ${height}`, height, role: "img",
    "aria-label": `Versions by chunk. ${slots.map((chunks, slot) => `Slot ${slot}${numbered ? `, sequence ${sequences[slot]}` : ""}: ${say(chunks)}`).join(". ")}. The reader's copy: ${say(staging)}. The writer is at ${where(writing)}, the reader at ${where(reading)}.`,
  });
  const row = (y, name, note, chunks) => {
    picture.append(svg("text", { x: 0, y: y + (note ? 13 : 19), "font-weight": 600 }, name));
    if (note) picture.append(svg("text", { x: 0, y: y + 27, "font-size": 11 }, note));
    chunks.forEach((version, index) => {
      const colour = `var(--${VERSION_COLOURS[version % VERSION_COLOURS.length]})`, x = left + index * chunk;
      picture.append(svg("rect", { x: x + 1, y, width: chunk - 2, height: tall, rx: 4, style: version < 0 ? "fill:var(--soft)" : `fill:${colour};fill-opacity:0.3;stroke:${colour}` }));
      if (version >= 0) picture.append(svg("text", { x: x + chunk / 2, y: y + 19, "text-anchor": "middle" }, String(version)));
    });
  };
  slots.forEach((chunks, slot) => {
    const y = top + slot * pitch, odd = sequences[slot] % 2 === 1;
    row(y, `slot ${slot}`, !numbered ? "" : width < 560 ? `seq ${sequences[slot]}${odd ? " odd" : ""}` : `sequence ${sequences[slot]}${odd ? ", odd: writing" : ", even"}`, chunks);
    // The writer is named above its chunk and the reader below, so that both may be at the same one.
    const mark = (place, name, below) => {
      if (!place || place[0] !== slot) return;
      const x = Math.min(left + (place[1] + 0.5) * chunk, width - 20);
      picture.append(
        svg("rect", { x: left + place[1] * chunk + 1, y, width: chunk - 2, height: tall, rx: 4, style: "fill:none;stroke:currentColor;stroke-width:2" }),
        svg("text", { x, y: below ? y + tall + 12 : y - 5, "text-anchor": "middle", "font-size": 11, "font-weight": 600 }, name));
    };
    mark(writing, "writer", false);
    mark(reading, "reader", true);
  });
  row(top + slots.length * pitch, width < 560 ? "copy" : "reader's copy", event in OUTCOMES ? event : "", staging);
  return picture;
}

/** Every copy of the reader as a bar, from its first tick to its last, in the colour of what became of it. */
function history(frames, now, width) {
  const inset = 9, across = (width - 2 * inset) / (frames.length - 1), height = 40, x = (tick) => inset + tick * across;
  const copies = [];
  let begin = 0;
  frames.forEach((frame, tick) => {
    if (frame[5] in OUTCOMES) { copies.push([begin, tick, frame[5]]); begin = tick + 1; }
  });
  const said = copies.map(([from, to, event]) => `tick ${from} to ${to}: ${OUTCOMES[event][0]}`).join("; ");
  const picture = svg("svg", { viewBox: `0 0 ${width} ${height}`, height, role: "img", "aria-label": `Copies of the reader. ${said || "none is complete"}.` });
  picture.append(svg("rect", { class: "zx-row", x: x(0), y: 6, width: x(frames.length - 1) - x(0), height: 16 }));
  for (const [from, to, event] of copies) {
    picture.append(svg("rect", { x: x(from), y: 6, width: Math.max(x(to) - x(from) - 1 + across * 0.6, 2), height: 16, rx: 3, style: `fill:var(--${OUTCOMES[event][1]})` }));
  }
  picture.append(svg("line", { class: "zx-end", x1: x(now), x2: x(now), y1: 2, y2: 26 }));
  for (const tick of ticks(frames.length - 1, 6)) picture.append(svg("text", { x: x(tick), y: 39, "text-anchor": tick === 0 ? "start" : "middle" }, String(tick)));
  return picture;
}

export default { render };
