// The page as slides, for a room: every heading begins one. Arrow keys turn them, Escape ends. A slide shows headings,
// the first sentences below each, figures, questions and exercises; the rest of the prose is for reading.
"use strict";
(() => {
  const slides = [];
  for (const cell of document.querySelectorAll("main > .cell")) {
    if (!slides.length || cell.querySelector("h2, h3")) slides.push([]);
    slides.at(-1).push(cell);
  }
  let current = -1;
  const turn = (to) => {
    current = Math.max(-1, Math.min(to, slides.length - 1));
    const shows = current >= 0;
    document.body.classList.toggle("slides", shows);
    slides.forEach((cells, number) => cells.forEach((cell) => { cell.hidden = shows && number !== current; }));
    if (shows) scrollTo(0, 0);
  };
  const button = document.createElement("button");
  button.type = "button";
  button.className = "present";
  button.textContent = "As slides";
  button.title = "Arrow keys turn the slides, Escape ends";
  button.addEventListener("click", () => { button.blur(); turn(0); });
  document.querySelector("nav.course span:not(:empty)").append(" · ", button);
  addEventListener("keydown", (event) => {
    if (current < 0 || event.target.matches("input, select, textarea")) return;
    const to = { ArrowRight: current + 1, PageDown: current + 1, ArrowLeft: Math.max(0, current - 1), PageUp: Math.max(0, current - 1), Escape: -1 }[event.key];
    if (to === undefined) return;
    event.preventDefault();
    turn(to);
  });
})();
