"use strict";
(() => {
  const report = JSON.parse(document.getElementById("report").textContent);
  const PHASES = ["tracing", "look-up", "compile", "transfer", "waiting", "fallback", "loader", "python"];
  const BARS = 240; // more steps are drawn as averages
  const SVG = Object.assign(document.createElement("div"), { innerHTML: "<svg></svg>" }).firstChild.namespaceURI;

  // ---- elements and numbers: text is only ever set as text

  const at = (id) => document.getElementById(id);

  // Paths may break behind a slash; a word only if it is longer than a line may be.
  function breakable(text) {
    const parts = text.match(/\S{40}|[^\s/]*\/|[^\s/]+|\s+/g) || [];
    const ends = (part) => part.endsWith("/") || part.length === 40;
    return parts.flatMap((part, index) => (index && ends(parts[index - 1]) ? [document.createElement("wbr"), part] : [part]));
  }

  const WHOLE = new Set(["option", "pre", "output"]);

  function element(name, attributes = {}, ...children) {
    const made = document.createElement(name);
    for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
    for (const child of children) {
      if (typeof child === "string" && !WHOLE.has(name)) made.append(...breakable(child));
      else if (child !== null && child !== undefined) made.append(child);
    }
    made.normalize();
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

  // The folder that all lines outside libraries are in
  function commonFolder() {
    const lines = [...report.findings, ...report.replicas.flatMap((one) => [
      ...one.compiles, ...one.compiles.map((row) => row.difference), ...one.syncs, ...one.fallbacks, ...one.transfers, ...one.memory.live,
      ...one.hot_lines,
    ])].map((row) => row.line).filter((line) => line?.startsWith("/") && !LIBRARY.test(line));
    let shared = lines.length ? lines[0].slice(0, lines[0].lastIndexOf("/") + 1) : "";
    for (const line of lines) while (!line.startsWith(shared)) shared = shared.slice(0, shared.lastIndexOf("/", shared.length - 2) + 1);
    return shared === "/" ? "" : shared;
  }

  const LIBRARY = /^.*\/(?:site|dist)-packages\//;
  const folder = commonFolder();

  // `file:line`, without the folder that all are in, and its own folders in the background
  function place(line) {
    if (!line) return element("span", { class: "soft" }, "no line known");
    const shown = folder && line.startsWith(folder) ? line.slice(folder.length) : line.replace(LIBRARY, "…/");
    const cut = shown.lastIndexOf("/") + 1;
    return element("span", { class: "code", title: line }, element("span", { class: "soft" }, shown.slice(0, cut)), shown.slice(cut));
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
    const heading = element("h2", { id: `${id}-title` }, title, element("span", { class: "count" }, ` ${count}`));
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

  // Rows by what `key` gives, in the order in which they are met.
  function grouped(rows, key) {
    const groups = new Map();
    for (const row of rows) groups.set(key(row), [...(groups.get(key(row)) || []), row]);
    return [...groups.values()];
  }

  // The source of a finding, its own line marked
  function source(finding) {
    if (!finding.source) return null;
    const own = Number(finding.line.slice(finding.line.lastIndexOf(":") + 1));
    const lines = finding.source.lines.map((text, index) => {
      const number = finding.source.first + index;
      const line = element(number === own ? "mark" : "span", {}, element("span", { class: "line-number" }, `${number}`));
      line.append(`${text}\n`); // whole: it scrolls
      return line;
    });
    return element("pre", { class: "source", tabindex: 0, role: "region", "aria-label": `Source of ${finding.line}` }, ...lines);
  }

  function findings() {
    const facts = (finding) => [
      finding.replica === null ? "" : `replica ${finding.replica}`, finding.cost_ms ? `cost ${duration(finding.cost_ms)}` : "",
    ].filter(Boolean).join(", ");
    const one = (finding, index) => element("div", { class: "finding" },
      element("div", {},
        element("header", {}, index ? null : element("h3", {}, finding.problem), finding.line && place(finding.line),
          element("span", { class: "soft small" }, facts(finding))),
        element("p", {}, finding.text)),
      source(finding));
    const items = grouped(report.findings, (finding) => `${finding.problem} ${finding.advice}`).map((group) =>
      element("li", {}, ...group.map(one), element("p", { class: "advice" }, group[0].advice)));
    const list = items.length ? element("ol", { class: "findings" }, ...items) : element("p", {}, "No problem found.");
    section("findings", "Findings", `${report.findings.length}`, ...(folder ? [below()] : []), list);
  }

  const below = () => element("p", { class: "soft small" }, "Lines are below ", element("span", { class: "code" }, folder));

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

  function chart(shown, top, phases, tall) {
    const svg = drawn("svg", { viewBox: `0 0 ${shown.length} 100`, preserveAspectRatio: "none", "aria-hidden": "true" });
    shown.forEach((bar, index) => {
      let y = 100;
      for (const phase of phases) {
        const height = Math.min((100 * bar.ms[phase]) / top, y);
        y -= height;
        if (height > 0) svg.append(drawn("rect", { x: index + 0.06, y, width: 0.88, height, style: `fill: var(--${phase})` }));
      }
      if (tall(bar) > top) svg.append(drawn("rect", { class: "cut", x: index + 0.06, y: 0, width: 0.88, height: 1.5 }));
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
    const cells = new Map(rows.map((row) => [row.phase, element("span")]));
    const shares = table("Time per step by phase", [
      ["Phase", (row) => element("span", {}, key(row.phase), ` ${row.phase}`)],
      ["ms per step", (row) => digits(row.ms), NUMBER], ["Share", (row) => percent(row.ms / (stepMs(replica) || 1)), NUMBER],
      ["Chosen step, ms", (row) => cells.get(row.phase), NUMBER],
    ], rows);
    shares.classList.add("narrow");
    const chosen = (bar) => cells.forEach((cell, phase) => { cell.textContent = digits(bar.ms[phase]); });
    section("steps", "Where the step goes", `${duration(stepMs(replica))} per step`, ...timeline(replica, chosen), shares);
  }

  // The highest bar that is drawn whole: a few very long steps must not flatten the others
  function scale(shown, tall) {
    const totals = shown.map(tall).sort((a, b) => a - b);
    return Math.min(totals[totals.length - 1], 2.5 * totals[Math.floor(0.9 * (totals.length - 1))]) || 1;
  }

  // The bars, with a slider that chooses one; so does pointing at it. chosen: called with the bar.
  function timeline(replica, chosen) {
    if (!replica.timeline.length) return [];
    const shown = bars(replica.timeline);
    const compiled = shown.some((bar) => bar.ms.compile);
    const tall = (compiles) => (bar) => bar.total - (compiles ? 0 : bar.ms.compile);
    const frame = element("div", { class: "chart" });
    let cursor;
    const draw = (compiles) => {
      const height = tall(compiles), top = scale(shown, height);
      const [svg, made] = chart(shown, top, PHASES.filter((phase) => compiles || phase !== "compile"), height);
      made.setAttribute("x", slide.value);
      cursor = made;
      const cut = Math.max(...shown.map(height)) > top ? ", longer steps are cut off" : "";
      frame.replaceChildren(svg, element("div", { class: "scale" }, `${duration(top)}${cut}`));
    };
    const output = element("output", { class: "step", id: "step", for: "slide" });
    const slide = element("input", { type: "range", class: "slide", id: "slide", min: 0, max: shown.length - 1, "aria-label": "Step" });
    const choose = (index) => {
      slide.value = index;
      cursor.setAttribute("x", index);
      output.textContent = describe(shown[index], replica);
      slide.setAttribute("aria-valuetext", output.textContent);
      chosen(shown[index]);
    };
    slide.addEventListener("input", () => choose(Number(slide.value)));
    const point = (event) => {
      const box = frame.getBoundingClientRect();
      choose(Math.min(shown.length - 1, Math.max(0, Math.floor((shown.length * (event.clientX - box.left)) / box.width))));
    };
    frame.addEventListener("pointermove", point);
    frame.addEventListener("pointerdown", point);
    const keys = present([replica]).map((phase) => element("li", {}, element("span", { class: "key", style: color(phase) }), phase));
    keys.push(element("li", {}, element("span", { class: "key line" }), "device at work"));
    const box = element("input", { type: "checkbox", id: "with-compiles" });
    // A few of those are cut off; more would set the scale, and flatten the rest.
    box.checked = shown.filter((bar) => bar.ms.compile).length <= 0.1 * shown.length;
    box.addEventListener("change", () => draw(box.checked));
    if (compiled) keys.push(element("li", {}, element("label", {}, box, " compiling in the bars")));
    slide.value = shown.length - 1;
    draw(box.checked);
    choose(shown.length - 1);
    return [element("figure", {}, element("ul", { class: "legend", "aria-label": "Colours" }, ...keys), frame, slide, output)];
  }

  // ---- what was compiled, synced, moved and held

  // The lines of two texts: [left, right] of each row, null where one has none. Numbers of values do not count: they shift.
  function compared(left, right) {
    const plain = (line) => line.replace(/%\d+/g, "%");
    const [a, b] = [left, right].map((lines) => lines.map(plain));
    let start = 0, end = 0;
    while (start < Math.min(a.length, b.length) && a[start] === b[start]) start += 1;
    while (end < Math.min(a.length, b.length) - start && a[a.length - 1 - end] === b[b.length - 1 - end]) end += 1;
    const [n, m] = [a.length - start - end, b.length - start - end];
    const rows = left.slice(0, start).map((line, index) => [line, right[index]]);
    // length of what is common to the rest of both; too long texts are other as a whole
    const common = n * m <= 4e6 ? Array.from({ length: n + 1 }, () => new Uint32Array(m + 1)) : null;
    for (let i = n - 1; common && i >= 0; i -= 1) {
      for (let j = m - 1; j >= 0; j -= 1) {
        common[i][j] = a[start + i] === b[start + j] ? common[i + 1][j + 1] + 1 : Math.max(common[i + 1][j], common[i][j + 1]);
      }
    }
    let gone = [], come = [];
    const flush = () => {
      for (let k = 0; k < Math.max(gone.length, come.length); k += 1) rows.push([gone[k] ?? null, come[k] ?? null]);
      [gone, come] = [[], []];
    };
    for (let i = 0, j = 0; i < n || j < m;) {
      if (common && i < n && j < m && a[start + i] === b[start + j]) {
        flush();
        rows.push([left[start + i++], right[start + j++]]);
      } else if (i < n && (j === m || !common || common[i + 1][j] >= common[i][j + 1])) gone.push(left[start + i++]);
      else come.push(right[start + j++]);
    }
    flush();
    return [...rows, ...left.slice(left.length - end).map((line, index) => [line, right[right.length - end + index]])]
      .map(([one, other]) => ({ one, other, same: one !== null && other !== null && plain(one) === plain(other) }));
  }

  const AROUND = 2; // lines alike that are shown beside others

  function sideBySide(before, now) {
    const rows = compared(before.graph.split("\n"), now.graph.split("\n"));
    const near = (index) => rows.slice(Math.max(0, index - AROUND), index + AROUND + 1).some((row) => !row.same);
    const cells = [element("strong", {}, `Step ${before.step}`), element("strong", {}, `Step ${now.step}`)];
    let alike = 0;
    const skip = () => {
      if (alike) cells.push(element("div", { class: "alike soft" }, `${counted(alike, "line")} alike`));
      alike = 0;
    };
    rows.forEach((row, index) => {
      if (!near(index)) { alike += 1; return; }
      skip();
      cells.push(element("code", { class: row.same ? "" : "gone" }, row.one ?? ""), element("code", { class: row.same ? "" : "come" }, row.other ?? ""));
    });
    skip();
    return element("div", { class: "diff", tabindex: 0, role: "region", "aria-label": "Both programs" }, ...cells);
  }

  // A part that is made when it is opened first
  function opened(title, make) {
    const made = element("details", {}, element("summary", {}, title));
    made.addEventListener("toggle", () => { if (made.open && made.children.length === 1) made.append(make()); });
    return made;
  }

  function compiles(replica) {
    const nearest = (row, index) => replica.compiles.slice(0, index).reverse().find((one) => one.graph_hash === row.difference.nearest);
    const why = (row) => {
      const cell = element("div", {}, element("div", {}, row.difference.text || row.difference.change));
      if (row.difference.line) cell.append(place(row.difference.line));
      const before = nearest(row, replica.compiles.indexOf(row));
      if (row.graph) {
        const text = element("pre", { tabindex: 0, role: "region", "aria-label": "Program" }, row.graph);
        cell.append(element("details", {}, element("summary", {}, "Text of the program"), text)); // there before: it can be searched
      }
      if (row.graph && before?.graph && before.graph !== row.graph) {
        cell.append(opened(`Beside the program of step ${before.step}`, () => sideBySide(before, row)));
      }
      return cell;
    };
    const asked = (row) => element("div", {}, place(row.line),
      element("div", { class: "soft small" }, [row.name, row.cause].filter(Boolean).join(", ")));
    const program = (row) => {
      const given = row.donated ? ` (${number(row.donated)} donated, ${size(row.donated_bytes)})` : "";
      return `${counted(row.operations, "operation")}, ${counted(row.inputs, "input")}${given}, ${counted(row.results, "result")}`;
    };
    const rows = replica.compiles;
    const advised = grouped(rows.filter((row) => row.difference.advice), (row) => row.difference.advice).map((group) => element("li", {},
      element("span", { class: "advice" }, group[0].difference.advice), element("span", { class: "soft" },
        group.length > 1 ? ` (${group.length} compiles)` : ` (step ${group[0].step})`)));
    const content = rows.length ? [table("Compiles", [
      ["Step", (row) => `${row.step}`, NUMBER], ["Took", (row) => duration(row.ms), NUMBER],
      ["Asked for by", asked], ["What is new", (row) => row.difference.change], ["Why", why],
      ["Program", program],
    ], rows)] : [];
    if (advised.length) content.unshift(element("ul", { class: "advised", "aria-label": "What to do" }, ...advised));
    const { compiles: behind, ms, by_operation: evaluated } = replica.background;
    if (behind || evaluated) {
      content.unshift(element("p", {}, `In the background: ${counted(behind, "compile")}, ${duration(ms)}; ` +
        `until then ${counted(evaluated, "execution")} operation by operation.`));
    }
    section("compiles", "Compiles", `${rows.length}`, ...content);
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
