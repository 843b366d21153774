"use strict";

/* Sorting: the first press sorts a column upwards, the second downwards, the third puts the rows back. */
function keyOf(row, column) {
  const cell = row.cells[column];
  const key = cell.dataset.key === undefined ? cell.textContent.trim() : cell.dataset.key;
  const number = key === "" ? NaN : Number(key);
  return { key, number };
}

function compare(left, right) {
  const leftIsNumber = !Number.isNaN(left.number);
  const rightIsNumber = !Number.isNaN(right.number);
  if (leftIsNumber && rightIsNumber) return left.number - right.number;
  if (leftIsNumber !== rightIsNumber) return leftIsNumber ? -1 : 1;
  return left.key.localeCompare(right.key, "en", { numeric: true });
}

for (const table of document.querySelectorAll("table.sortable")) {
  const body = table.tBodies[0];
  const original = [...body.rows];
  const headings = [...table.tHead.rows[table.tHead.rows.length - 1].cells];
  headings.forEach((heading, column) => {
    heading.querySelector("button").addEventListener("click", () => {
      const next = { none: "ascending", ascending: "descending", descending: "none" }[heading.ariaSort || "none"];
      for (const other of headings) other.removeAttribute("aria-sort");
      let rows = original;
      if (next !== "none") {
        heading.setAttribute("aria-sort", next);
        const sign = next === "ascending" ? 1 : -1;
        const keyed = original.map((row) => ({ row, at: keyOf(row, column) }));
        const given = keyed.filter((entry) => entry.at.key !== "");
        const absent = keyed.filter((entry) => entry.at.key === "");
        given.sort((left, right) => sign * compare(left.at, right.at));
        rows = [...given, ...absent].map((entry) => entry.row);
      }
      body.append(...rows);
    });
  });
}

/* Filtering: rows that hold all the words stay. */
for (const input of document.querySelectorAll("input[data-filter]")) {
  const rows = [...document.getElementById(input.dataset.filter).tBodies[0].rows];
  const texts = rows.map((row) => row.textContent.toLowerCase());
  const count = document.querySelector(`output[data-count="${input.dataset.filter}"]`);
  input.addEventListener("input", () => {
    const words = input.value.toLowerCase().split(/\s+/).filter(Boolean);
    let shown = 0;
    rows.forEach((row, place) => {
      row.hidden = !words.every((word) => texts[place].includes(word));
      shown += row.hidden ? 0 : 1;
    });
    count.textContent = `${shown} of ${rows.length}`;
  });
}

/* Claims by verdict; without scripts all of them are shown. A link to a claim that is not shown shows all again. */
const claims = [...document.querySelectorAll(".claim")];
for (const group of document.querySelectorAll(".verdicts")) {
  const buttons = [...group.querySelectorAll("button")];
  const show = (verdict) => {
    for (const button of buttons) button.setAttribute("aria-pressed", String(button.dataset.show === verdict));
    for (const claim of claims) claim.hidden = verdict !== "" && claim.dataset.verdict !== verdict;
    group.querySelector("output").textContent = `${claims.filter((claim) => !claim.hidden).length} of ${claims.length}`;
  };
  for (const button of buttons) button.addEventListener("click", () => show(button.dataset.show));
  addEventListener("hashchange", () => {
    const target = document.getElementById(location.hash.slice(1));
    if (target && target.hidden) { show(""); target.scrollIntoView(); }
  });
  group.hidden = false;
}

/* A figure opens in its full size, to be moved about with a finger or the arrow keys; Escape or a tap closes it. */
const large = document.body.appendChild(document.createElement("dialog"));
large.className = "large";
large.append(new Image(), Object.assign(document.createElement("button"), { type: "button", textContent: "close" }));
large.addEventListener("click", () => large.close());
for (const link of document.querySelectorAll("a.zoom")) {
  link.addEventListener("click", (event) => {
    const figure = link.querySelector("img");
    if (event.ctrlKey || event.metaKey || event.shiftKey) return;
    event.preventDefault();
    const width = Math.max(figure.getAttribute("width"), Math.min(figure.naturalWidth, 2 * innerWidth));
    Object.assign(large.querySelector("img"), { src: figure.src, alt: figure.alt, width });
    large.showModal();
    large.scrollTo(0, 0);
  });
}

/* Copying a command, where the browser allows it. */
if (navigator.clipboard) {
  for (const button of document.querySelectorAll("button.copy")) {
    button.hidden = false;
    button.addEventListener("click", async () => {
      try {
        await navigator.clipboard.writeText(button.previousElementSibling.textContent);
        button.textContent = "copied";
      } catch {
        button.textContent = "select and copy by hand";
      }
      setTimeout(() => { button.textContent = "copy"; }, 1500);
    });
  }
}

/* On a phone the contents start folded. */
if (matchMedia("(max-width: 68rem)").matches) document.querySelector(".contents").open = false;
