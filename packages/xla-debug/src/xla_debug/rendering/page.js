"use strict";
(() => {
  const report = JSON.parse(document.getElementById("report").textContent);
  const PHASES = ["tracing", "look-up", "compile", "transfer", "waiting", "fallback", "loader", "python"];
  const BARS = 240; // more steps are drawn as averages
  const SVG = Object.assign(document.createElement("div"), { innerHTML: "<svg></svg>" }).firstChild.namespaceURI;

  // ---- elements and numbers: text is only ever set as text

  const at = (id) => document.getElementById(id);

  function element(name, attributes = {}, ...children) {
    const made = document.createElement(name);
    for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
    made.append(...children.filter((child) => child !== null && child !== undefined));
    return made;
  }

  function drawn(name, attributes) {
    const made = document.createElementNS(SVG, name);
    for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
    return made;
  }

  const sum = (values) => values.reduce((total, value) => total + value, 0);
  const number = (value) => value.toLocaleString("en", { maximumFractionDigits: 1 });
  const counted = (count, noun) => `${number(count)} ${noun}${count === 1 ? "" : "s"}`;
  const percent = (share) => `${(100 * share).toFixed(0)} %`;
  const digits = (ms) => ms.toFixed(ms === 0 || ms >= 99.95 ? 0 : ms >= 9.995 ? 1 : ms >= 0.1 ? 2 : 3);

  function duration(ms) {
    if (ms >= 59950) return `${Math.floor(Math.round(ms / 1000) / 60)} min ${Math.round(ms / 1000) % 60} s`;
    return ms >= 999.5 ? `${(ms / 1000).toFixed(ms < 9995 ? 2 : 1)} s` : `${digits(ms)} ms`;
  }

  function size(nbytes) {
    if (nbytes < 1024) return `${nbytes} B`;
    const units = ["KiB", "MiB", "GiB", "TiB"];
    let unit = -1;
    do { nbytes /= 1024; unit += 1; } while (nbytes >= 1023.95 && unit < units.length - 1);
    return `${nbytes.toFixed(1)} ${units[unit]}`;
  }

  // `file:line` with its folders in the background
  function place(line) {
    if (!line) return element("span", { class: "soft" }, "no line known");
    const cut = line.lastIndexOf("/") + 1;
    return element("span", { class: "code" }, element("span", { class: "soft" }, line.slice(0, cut)), line.slice(cut));
  }

  const color = (phase) => `--color: var(--${phase})`;
  const whole = (replica) => sum(Object.values(replica.phases_ms));
  const perStep = (replica, phase) => (replica.phases_ms[phase] || 0) / Math.max(replica.measured_steps, 1);
  const stepMs = (replica) => whole(replica) / Math.max(replica.measured_steps, 1);
  const ownMs = (replica) => stepMs(replica) - perStep(replica, "waiting");
  const busy = (replica) => (whole(replica) ? Math.min(replica.device_ms / whole(replica), 1) : 0);
  const present = (replicas) => PHASES.filter((phase) => replicas.some((replica) => replica.phases_ms[phase]));

  function median(values) {
    const sorted = [...values].sort((a, b) => a - b), middle = sorted.length >> 1;
    return sorted.length % 2 ? sorted[middle] : (sorted[middle - 1] + sorted[middle]) / 2;
  }

  // ---- sections and tables

  // A section with its heading; nothing without content.
  function section(id, title, count, ...content) {
    const heading = element("h2", { id: `${id}-title` }, title, " ", element("span", { class: "count" }, count));
    at(id).replaceChildren(...(content.length ? [heading, ...content] : []));
  }

  // columns: [heading, row → text or node, {number, high}]
  function table(label, columns, rows) {
    const head = columns.map(([name, , kind = {}]) =>
      element("th", { scope: "col", role: "columnheader", class: kind.number ? "number" : "" }, name));
    const body = rows.map((row) => element("tr", { role: "row" }, ...columns.map(([name, cell, kind = {}]) =>
      element("td", { role: "cell", "data-label": name, class: `${kind.number ? "number" : ""} ${kind.high?.(row) ? "high" : ""}` },
        element("div", {}, cell(row))))));
    return element("table", { role: "table", "aria-label": label },
      element("thead", { role: "rowgroup" }, element("tr", { role: "row" }, ...head)), element("tbody", { role: "rowgroup" }, ...body));
  }

  function listed(id, title, columns, rows) {
    section(id, title, `${rows.length}`, ...(rows.length ? [table(title, columns, rows)] : []));
  }

  const NUMBER = { number: true };
  const by = (figure) => (a, b) => figure(b) - figure(a);

  // ---- what is wrong

  function head() {
    const replicas = report.replicas;
    const verdicts = [...new Set(replicas.map((replica) => replica.verdict))];
    const of = (verdict) => replicas.filter((replica) => replica.verdict === verdict);
    const group = (some) => (some.length === 1 ? `replica ${some[0].ordinal}` : counted(some.length, "replica"));
    const who = (verdict) => (verdicts.length > 1 ? ` (${group(of(verdict))})` : "");
    at("command").textContent = report.command.join(" ");
    at("bottleneck").textContent = verdicts.map((verdict) => verdict + who(verdict)).join(", ") || "nothing measured";
    document.title = `${at("bottleneck").textContent} · ${report.command.join(" ")}`;
    at("lead").textContent = verdicts.filter((verdict) => verdict !== "nothing measured").map((verdict) => {
      const phase = verdict.replace("-bound", "");
      const phases = { device: ["waiting"], tracing: ["tracing", "look-up"] }[phase] || [phase];
      const spent = (replica) => sum(phases.map((one) => replica.phases_ms[one] || 0)) / (whole(replica) || 1);
      const part = (replica) => Math.max(spent(replica), phase === "device" ? busy(replica) : 0);
      const share = percent(sum(of(verdict).map(part)) / of(verdict).length);
      return phase === "device" ? `The device works ${share} of the time.` : `${share} of the step goes into ${phase}.`;
    }).join(" ");
    const state = report.exit_code === null ? "running" : report.exit_code === 0 ? "finished" : `exit code ${report.exit_code}`;
    const peak = Math.max(0, ...replicas.flatMap((replica) => replica.memory.devices.map((device) => device.peak)));
    const facts = [["State", state], ["Duration", duration(1000 * report.seconds)]];
    if (replicas.length) {
      const slow = replicas[slowest()];
      const pace = slow.steps ? duration(stepMs(slow)) : "none";
      facts.unshift(["Step", pace], ["Steps", number(slow.steps)], ["Device at work", percent(busy(slow))]);
      facts.push(["Replicas", number(replicas.length)], ["Hardware", slow.hardware]);
    }
    if (peak) facts.push(["Peak memory", size(peak)]);
    facts.push(["Started", new Date(1000 * report.started_s).toLocaleString()]);
    at("facts").append(...facts.map(([name, value]) => element("div", {}, element("dt", {}, name), element("dd", {}, value))));
  }

  function findings() {
    const items = report.findings.map((finding) => element("li", {},
      element("header", {}, element("h3", {}, finding.problem), finding.line && place(finding.line),
        element("span", { class: "soft small" }, [
          finding.replica === null ? "" : `replica ${finding.replica}`, finding.cost_ms ? `cost ${duration(finding.cost_ms)}` : "",
        ].filter(Boolean).join(", "))),
      element("p", {}, finding.text), element("p", { class: "advice" }, finding.advice)));
    const list = items.length ? element("ol", { class: "findings" }, ...items) : element("p", {}, "No problem found.");
    section("findings", "Findings", `${items.length}`, list);
  }

  const slowest = () => report.replicas.reduce((best, replica, index, all) => (ownMs(replica) > ownMs(all[best]) ? index : best), 0);

  // ---- where the step goes

  function stack(replica, most) {
    const parts = PHASES.map((phase) => element("span", { style: `${color(phase)}; width: ${(100 * perStep(replica, phase)) / most}%` }));
    return element("div", { class: "stack", "aria-hidden": "true" }, ...parts);
  }

  function replicas() {
    const measured = report.replicas.filter((replica) => replica.steps);
    if (measured.length < 2) return section("replicas", "Replicas", "");
    const most = Math.max(...measured.map(stepMs));
    const high = (phase) => {
      const usual = median(measured.map((replica) => perStep(replica, phase)));
      return (replica) => phase !== "waiting" && perStep(replica, phase) - usual > 0.1 * ownMs(replica);
    };
    const columns = [
      ["Replica", (replica) => `${replica.ordinal}`], ["Host", (replica) => replica.host], ["Bottleneck", (replica) => replica.verdict],
      ["Step, ms", (replica) => digits(stepMs(replica)), NUMBER], ["Phases", (replica) => stack(replica, most)],
      ...present(measured).map((phase) => [phase, (replica) => digits(perStep(replica, phase)), { number: true, high: high(phase) }]),
      ["Device", (replica) => percent(busy(replica)), NUMBER],
    ];
    section("replicas", "Replicas", `${measured.length}, ms per step`, table("Replicas", columns, measured));
  }

  // Steps as bars: several neighbours are one if there are too many.
  function bars(timeline) {
    const each = Math.ceil(timeline.length / BARS);
    return Array.from({ length: Math.ceil(timeline.length / each) }, (_, index) => {
      const steps = timeline.slice(index * each, (index + 1) * each);
      const ms = Object.fromEntries(PHASES.map((phase) => [phase, sum(steps.map((step) => step.ms[phase] || 0)) / steps.length]));
      return { steps: steps.length, start: steps[0].start_s, ms, total: sum(Object.values(ms)), first: index * each,
        device: sum(steps.map((step) => step.device_ms)) / steps.length, compiles: sum(steps.map((step) => step.compiles)) };
    });
  }

  function chart(shown, top) {
    const svg = drawn("svg", { viewBox: `0 0 ${shown.length} 100`, preserveAspectRatio: "none", "aria-hidden": "true" });
    shown.forEach((bar, index) => {
      let y = 100;
      for (const phase of PHASES) {
        const height = Math.min((100 * bar.ms[phase]) / top, y);
        y -= height;
        if (height > 0) svg.append(drawn("rect", { x: index + 0.06, y, width: 0.88, height, style: `fill: var(--${phase})` }));
      }
      if (bar.total > top) svg.append(drawn("rect", { class: "cut", x: index + 0.06, y: 0, width: 0.88, height: 1.5 }));
    });
    const level = (bar) => Math.max(0, 100 - (100 * bar.device) / top);
    const device = shown.map((bar, index) => `${index},${level(bar)} ${index + 1},${level(bar)}`);
    const cursor = drawn("rect", { class: "cursor", x: 0, y: 0, width: 1, height: 100 });
    svg.append(drawn("polyline", { class: "device", points: device.join(" ") }), cursor);
    return [svg, cursor];
  }

  function describe(bar, replica) {
    const numbered = replica.timeline.length === replica.steps;
    const single = numbered ? `Step ${bar.first}` : "Step";
    const who = bar.steps > 1 ? `${bar.steps} steps${numbered ? ` from step ${bar.first}` : ""}` : single;
    const when = duration(1000 * Math.max(0, bar.start - replica.started_s));
    const took = `${duration(bar.total)}${bar.steps > 1 ? " each" : ""}`;
    const parts = PHASES.filter((phase) => bar.ms[phase] > 0).sort((a, b) => bar.ms[b] - bar.ms[a]);
    const compiled = bar.compiles ? `; ${counted(bar.compiles, "compile")}` : "";
    return `${who}, ${when} after the start: ${took} (${parts.map((phase) => `${phase} ${duration(bar.ms[phase])}`).join(", ")}); ` +
      `device at work ${duration(bar.device)}${compiled}`;
  }

  function steps(replica) {
    if (!replica.steps) return section("steps", "Where the step goes", "");
    const rows = present([replica]).map((phase) => ({ phase, ms: perStep(replica, phase) }));
    const key = (phase) => element("span", { class: "key", style: color(phase), "aria-hidden": "true" });
    const shares = table("Time per step by phase", [
      ["Phase", (row) => element("span", {}, key(row.phase), ` ${row.phase}`)],
      ["ms per step", (row) => digits(row.ms), NUMBER], ["Share", (row) => percent(row.ms / (stepMs(replica) || 1)), NUMBER],
    ], rows);
    section("steps", "Where the step goes", `${duration(stepMs(replica))} per step`, ...timeline(replica), shares);
  }

  // The bars, with a slider that chooses one; so does pointing at it.
  function timeline(replica) {
    if (!replica.timeline.length) return [];
    const shown = bars(replica.timeline);
    const totals = shown.map((bar) => bar.total).sort((a, b) => a - b);
    // a few very long steps, as those that compile, must not flatten the others
    const top = Math.min(totals[totals.length - 1], 2.5 * totals[Math.floor(0.9 * (totals.length - 1))]) || 1;
    const [svg, cursor] = chart(shown, top);
    const output = element("output", { class: "step", id: "step", for: "slide" });
    const slide = element("input", { type: "range", class: "slide", id: "slide", min: 0, max: shown.length - 1, "aria-label": "Step" });
    const choose = (index) => {
      slide.value = index;
      cursor.setAttribute("x", index);
      output.textContent = describe(shown[index], replica);
      slide.setAttribute("aria-valuetext", output.textContent);
    };
    slide.addEventListener("input", () => choose(Number(slide.value)));
    const point = (event) => {
      const box = svg.getBoundingClientRect();
      choose(Math.min(shown.length - 1, Math.max(0, Math.floor((shown.length * (event.clientX - box.left)) / box.width))));
    };
    svg.addEventListener("pointermove", point);
    svg.addEventListener("pointerdown", point);
    choose(shown.length - 1);
    const keys = present([replica]).map((phase) => element("li", {}, element("span", { class: "key", style: color(phase) }), phase));
    keys.push(element("li", {}, element("span", { class: "key line" }), "device at work"));
    const cut = totals[totals.length - 1] > top ? ", longer steps are cut off" : "";
    return [element("figure", {}, element("ul", { class: "legend", "aria-label": "Colours" }, ...keys),
      element("div", { class: "chart" }, svg, element("div", { class: "scale" }, `${duration(top)}${cut}`)), slide, output)];
  }

  // ---- what was compiled, synced, moved and held

  function compiles(replica) {
    const why = (row) => {
      const cell = element("div", {}, element("div", {}, row.difference.text || row.difference.change));
      if (row.difference.line) cell.append(place(row.difference.line));
      if (row.difference.advice) cell.append(element("div", { class: "advice" }, row.difference.advice));
      const title = element("summary", {}, `Program, ${counted(row.operations, "operation")}`);
      if (row.graph) cell.append(element("details", {}, title, element("pre", { tabindex: 0, role: "region", "aria-label": "Program" }, row.graph)));
      return cell;
    };
    const asked = (row) => element("div", {}, place(row.line),
      element("div", { class: "soft small" }, [row.name, row.cause].filter(Boolean).join(", ")));
    listed("compiles", "Compiles", [
      ["Step", (row) => `${row.step}`, NUMBER], ["Took", (row) => duration(row.ms), NUMBER],
      ["Asked for by", asked], ["What is new", (row) => row.difference.change], ["Why", why],
      ["Operations", (row) => number(row.operations), NUMBER], ["Inputs", (row) => number(row.inputs), NUMBER],
      ["Donated", (row) => (row.donated ? `${number(row.donated)}, ${size(row.donated_bytes)}` : "none"), NUMBER],
      ["Results", (row) => number(row.results), NUMBER],
    ], replica.compiles);
  }

  function memory(replica) {
    const { devices, live, over_time: points } = replica.memory;
    const content = [];
    if (points.length > 1) content.push(held(points));
    if (devices.length) {
      content.push(element("h3", {}, "Devices"), table("Devices", [
        ["Device", (row) => row.device], ["In use", (row) => size(row.in_use), NUMBER], ["Peak", (row) => size(row.peak), NUMBER],
        ["Of", (row) => (row.limit ? size(row.limit) : "unknown"), NUMBER],
      ], devices));
    }
    if (live.length) {
      content.push(element("h3", {}, "Largest live buffers"), table("Largest live buffers", [
        ["Made at", (row) => place(row.line)], ["Held by", (row) => row.holder || "unknown"], ["Shape", (row) => row.shape],
        ["Device", (row) => row.device], ["Count", (row) => number(row.count), NUMBER], ["Size", (row) => size(row.nbytes), NUMBER],
      ], live));
    }
    section("memory", "Memory", "", ...content);
  }

  function held(points) {
    const start = points[0][0], span = points[points.length - 1][0] - start || 1;
    const top = Math.max(1, ...points.map((point) => point[1]));
    const path = points.map(([time, nbytes]) => `${(100 * (time - start)) / span},${100 - (98 * nbytes) / top}`);
    const label = `Bytes in use over ${duration(1000 * span)}: at most ${size(top)}, at the end ${size(points[points.length - 1][1])}`;
    const svg = drawn("svg", { viewBox: "0 0 100 100", preserveAspectRatio: "none", role: "img", "aria-label": label });
    svg.append(drawn("polygon", { class: "held", points: `0,100 ${path.join(" ")} 100,100` }));
    const below = ["bytes in use on all devices", `over ${duration(1000 * span)}`].map((text) => element("span", {}, text));
    return element("figure", {}, element("div", { class: "chart low" }, svg, element("div", { class: "scale" }, size(top))),
      element("div", { class: "scale" }, ...below));
  }

  function details(replica) {
    steps(replica);
    section("timeline", "Timeline", "the last steps", ...drawTimeline(replica, { element, drawn, duration, place }));
    compiles(replica);
    listed("syncs", "Syncs", [
      ["Line", (row) => place(row.line)], ["Kind", (row) => row.kind], ["Cause", (row) => row.cause || ""],
      ["Count", (row) => number(row.count), NUMBER], ["In steps", (row) => number(row.steps), NUMBER],
      ["Blocked", (row) => duration(row.blocked_ms), NUMBER],
    ], [...replica.syncs].sort(by((row) => row.blocked_ms)));
    const moved = [["Moved", (row) => size(row.nbytes), NUMBER], ["Took", (row) => duration(row.ms), NUMBER]];
    listed("fallbacks", "Operators on the CPU", [
      ["Operator", (row) => element("span", { class: "code" }, row.operator)], ["Line", (row) => place(row.line)],
      ["Calls", (row) => number(row.count), NUMBER], ...moved,
    ], [...replica.fallbacks].sort(by((row) => row.ms)));
    listed("transfers", "Transfers", [
      ["Direction", (row) => row.direction.replace("_", " ")], ["Line", (row) => place(row.line)],
      ["Count", (row) => number(row.count), NUMBER], ...moved,
    ], [...replica.transfers].sort(by((row) => row.ms)));
    memory(replica);
    listed("hot-lines", "Hot lines", [
      ["Line", (row) => place(row.line)], ["Phase", (row) => row.phase], ["Host time", (row) => duration(row.ms), NUMBER],
      ["Share", (row) => percent(row.ms / (whole(replica) || 1)), NUMBER],
    ], [...replica.hot_lines].sort(by((row) => row.ms)));
  }

  function environment() {
    const { python, platform, versions, settings } = report.environment;
    const rows = [["Python", python], ["Platform", platform], ...Object.entries(versions), ...Object.entries(settings)];
    section("environment", "Environment", "", table("Environment", [["Name", (row) => row[0]], ["Value", (row) => row[1]]], rows));
  }

  // ---- the search box: rows and findings that hold all its words

  function filter() {
    const words = at("filter").value.toLowerCase().split(/\s+/).filter(Boolean);
    let matches = 0;
    for (const row of document.querySelectorAll("tbody tr, .findings > li")) {
      const text = row.textContent.toLowerCase();
      row.hidden = !words.every((word) => text.includes(word));
      matches += row.hidden ? 0 : 1;
    }
    const empty = (one) => !one.querySelector("tbody tr:not([hidden]), .findings > li:not([hidden])");
    for (const one of document.querySelectorAll("main table")) one.hidden = empty(one);
    for (const one of document.querySelectorAll("main section")) one.hidden = !one.firstChild || (words.length > 0 && empty(one));
    at("matches").textContent = words.length ? `${counted(matches, "row")} found` : "";
  }

  head();
  findings();
  replicas();
  environment();
  if (report.replicas.length) {
    const choice = at("replica");
    const option = (replica, index) => element("option", { value: index }, `replica ${replica.ordinal} on ${replica.host}`);
    choice.append(...report.replicas.map(option));
    choice.value = slowest();
    choice.addEventListener("change", () => { details(report.replicas[Number(choice.value)]); filter(); });
    at("choice").hidden = report.replicas.length < 2;
    details(report.replicas[slowest()]);
  }
  filter();
  at("filter").addEventListener("input", filter);
  at("tools").addEventListener("submit", (event) => event.preventDefault());
})();
