"use strict";
// The timeline of a replica's last steps. tools: helpers of the page. Gives the nodes of its section, none without spans.
const drawTimeline = (replica, { element, drawn, duration, place }) => {
  const ROW = 44, BAR = 24, TOP = 18, WIDTH = 1000;
  const CLOSEST = 0.002; // milliseconds across the chart, at most zoom
  if (!(replica.spans || []).length) return [];
  const zero = Math.min(...replica.spans.map((span) => span.start_s));
  const at = (time) => 1000 * (time - zero);
  const names = [...new Set(replica.spans.map((span) => span.track))];
  const tracks = names.sort((a, b) => (a !== "host") - (b !== "host") || (a < b ? -1 : 1));
  // what a track shows, with how deep each is inside of others
  const rows = tracks.map((track) => {
    const open = [];
    return replica.spans.filter((span) => span.track === track)
      .map((span) => ({ span, start: at(span.start_s), end: at(span.start_s) + span.ms }))
      .sort((a, b) => a.start - b.start || b.end - a.end)
      .map((item) => {
        while (open.length && open[open.length - 1] <= item.start + 0.001) open.pop();
        open.push(item.end);
        return { ...item, depth: Math.min(open.length - 1, 3) };
      });
  });
  const items = rows.flat();
  const whole = { from: 0, to: Math.max(CLOSEST, ...items.map((item) => item.end)) };
  let view = { ...whole };
  let chosen = null;

  const height = ROW * tracks.length;
  const svg = drawn("svg", { viewBox: `0 0 ${WIDTH} ${height}`, preserveAspectRatio: "none", "aria-hidden": "true" });
  const arrows = drawn("g", { class: "launches" });
  const marks = new Map();
  rows.forEach((row, number) => row.forEach((item) => {
    const inset = 4 * item.depth;
    const mark = drawn("rect", { y: number * ROW + TOP + inset, height: BAR - inset, style: `fill: var(--${item.span.phase})` });
    if (item.span.estimated) mark.setAttribute("class", "estimated");
    item.row = number;
    marks.set(item, mark);
    svg.append(mark);
    if (item.span.launched_s !== null && item.span.launched_s !== undefined && tracks[0] === "host") {
      item.arrow = drawn("line", { y1: TOP + BAR, y2: number * ROW + TOP });
      arrows.append(item.arrow);
    }
  }));
  svg.append(arrows);

  const scale = element("div", { class: "scale" }, element("span", {}), element("span", {}));
  const output = element("output", { class: "step", id: "span" });
  const labels = tracks.map((track, number) => element("span", { class: "track", style: `top: ${number * ROW}px` }, track));
  const chart = element("div", {
    class: "spans", tabindex: 0, role: "application", id: "spans", style: `height: ${height}px`, "aria-describedby": "span",
    "aria-label": "Timeline: arrows choose, plus and minus zoom, 0 shows all",
  }, svg, ...labels);

  const across = (ms) => (WIDTH * (ms - view.from)) / (view.to - view.from);

  function draw() {
    for (const [item, mark] of marks) {
      const hidden = item.end < view.from || item.start > view.to;
      mark.style.display = hidden ? "none" : "";
      if (item.arrow) {
        item.arrow.setAttribute("x1", across(at(item.span.launched_s)));
        item.arrow.setAttribute("x2", across(item.start));
      }
      if (hidden) continue;
      // far outside of the view, numbers would be too large to be drawn
      const left = Math.max(across(item.start), -WIDTH), right = Math.min(across(item.end), 2 * WIDTH);
      mark.setAttribute("x", left);
      mark.setAttribute("width", Math.max(right - left, 0.7));
    }
    scale.firstChild.textContent = `${duration(view.from)} after the start`;
    scale.lastChild.textContent = duration(view.to);
  }

  function show(from, to) {
    const length = Math.min(Math.max(to - from, CLOSEST), whole.to);
    const first = Math.min(Math.max(from, 0), whole.to - length);
    view = { from: first, to: first + length };
    draw();
  }

  function zoom(factor, around = (view.from + view.to) / 2) {
    show(around - (around - view.from) * factor, around + (view.to - around) * factor);
  }

  function choose(item) {
    if (chosen) marks.get(chosen).classList.remove("chosen");
    chosen = item;
    if (!item) return;
    marks.get(item).classList.add("chosen");
    const { span } = item;
    const guess = span.estimated ? ", estimated from samples" : "";
    output.replaceChildren(`${span.name}: ${duration(span.ms)}, ${duration(item.start)} after the start (${span.track}, ${span.phase}${guess}) `,
      place(span.line));
  }

  function under(event) {
    const box = svg.getBoundingClientRect();
    const ms = view.from + ((event.clientX - box.left) / box.width) * (view.to - view.from);
    const row = rows[Math.floor((event.clientY - box.top) / ROW)] || [];
    const near = ((view.to - view.from) * 2) / box.width; // two pixels, for what is very short
    const hits = row.filter((item) => item.start - near <= ms && ms <= item.end + near);
    const inside = hits.filter((item) => item.start <= ms && ms <= item.end);
    const deepest = (inside.length ? inside : hits).reduce((best, item) => (!best || item.depth >= best.depth ? item : best), null);
    return [ms, deepest];
  }

  let drag = null;
  chart.addEventListener("pointerdown", (event) => { drag = { x: event.clientX, ...view }; });
  chart.addEventListener("pointerup", () => { drag = null; });
  chart.addEventListener("pointerleave", () => { drag = null; });
  chart.addEventListener("pointermove", (event) => {
    if (drag && event.buttons && event.pointerType === "mouse") {
      const moved = ((drag.x - event.clientX) / chart.clientWidth) * (drag.to - drag.from);
      return show(drag.from + moved, drag.to + moved);
    }
    const [, item] = under(event);
    if (item) choose(item);
  });
  chart.addEventListener("click", (event) => { const [, item] = under(event); if (item) choose(item); });
  chart.addEventListener("dblclick", (event) => zoom(0.25, under(event)[0]));
  chart.addEventListener("wheel", (event) => {
    if (!event.ctrlKey && document.activeElement !== chart) return; // the page scrolls
    event.preventDefault();
    zoom(event.deltaY > 0 ? 1.25 : 0.8, under(event)[0]);
  }, { passive: false });

  const step = (count) => {
    if (!chosen) return choose(items[0]);
    const row = rows[chosen.row], item = row[Math.min(Math.max(row.indexOf(chosen) + count, 0), row.length - 1)];
    choose(item);
    const length = view.to - view.from;
    if (item.start < view.from || item.start > view.to) show(item.start - length / 3, item.start + (2 * length) / 3);
  };
  const change = (count) => {
    if (!chosen) return choose(items[0]);
    const row = rows[Math.min(Math.max(chosen.row + count, 0), rows.length - 1)];
    choose(row.reduce((best, item) => (Math.abs(item.start - chosen.start) < Math.abs(best.start - chosen.start) ? item : best), row[0]));
  };
  const around = () => (chosen && chosen.end > view.from && chosen.start < view.to ? (chosen.start + chosen.end) / 2 : undefined);
  const keys = {
    ArrowRight: () => step(1), ArrowLeft: () => step(-1), ArrowDown: () => change(1), ArrowUp: () => change(-1),
    "+": () => zoom(0.5, around()), "=": () => zoom(0.5, around()), "-": () => zoom(2, around()), 0: () => show(0, whole.to),
  };
  chart.addEventListener("keydown", (event) => {
    if (event.ctrlKey || event.metaKey || event.altKey || !keys[event.key]) return;
    event.preventDefault();
    keys[event.key]();
  });

  const button = (label, text, act) => {
    const made = element("button", { type: "button", "aria-label": label }, text);
    made.addEventListener("click", act);
    return made;
  };
  const buttons = element("div", { class: "zoom" }, button("Zoom in", "+", keys["+"]), button("Zoom out", "−", keys["-"]),
    button("Show all", "all", keys[0]), element("span", { class: "soft small" }, "drag to move; + and − or the wheel zoom, arrows choose"));
  draw();
  choose(items[items.length - 1]);
  return [element("figure", { class: "timeline" }, buttons, chart, scale), output];
};
