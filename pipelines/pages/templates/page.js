"use strict";
const filters = document.getElementById("filters");
function show() {
  const chosen = new FormData(filters);
  const below = chosen.get("below") ? Number(chosen.get("below")) / 100 : null;
  const rows = [...document.querySelectorAll("article.row")];
  let shown = 0;
  for (const row of rows) {
    const sure = row.dataset.confidence;
    const fits = (!chosen.get("kind") || row.dataset.kind === chosen.get("kind"))
      && (!chosen.get("failed") || row.dataset.failed === "1")
      && (below === null || (sure !== "" && Number(sure) < below));
    row.hidden = !fits;
    shown += fits ? 1 : 0;
  }
  filters.querySelector("output").textContent = `${shown === rows.length ? "" : `${shown} of `}${rows.length} ${rows.length === 1 ? "row" : "rows"}`;
}
if (filters) {
  filters.addEventListener("input", show);
  filters.addEventListener("submit", (event) => event.preventDefault());
  show();
}
