// On a phone code is folded: a reader opens what they want to read. Without scripts all of it shows.
"use strict";
(() => {
  const narrow = matchMedia("(max-width: 600px)");
  const fold = () => { for (const code of document.querySelectorAll("details.code")) code.open = !narrow.matches; };
  narrow.addEventListener("change", fold);
  fold();
})();
