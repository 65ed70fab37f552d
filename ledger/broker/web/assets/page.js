// Status page of a broker. One stream of server-sent events has all data of the page. Names are shown as text, never as
// HTML, because users choose them.
"use strict";

const $ = (id) => document.getElementById(id);
const view = { filter: "", sort: "name", page: 0 };
let source = null;
let latest = null;
let lastEvent = 0;

const make = (tag, className = "", text = "") => {
  const element = document.createElement(tag);
  if (className) element.className = className;
  if (text !== "") element.textContent = text;
  return element;
};

const count = (number) => {
  if (number < 100000) return Math.round(number).toLocaleString("en");
  return new Intl.NumberFormat("en", { notation: "compact", maximumFractionDigits: 1 }).format(number);
};
const bytes = (size) => {
  let unit = 0;
  while (size >= 1024 && unit < 5) { size /= 1024; unit += 1; }
  return `${size >= 100 || unit === 0 ? Math.round(size) : size.toFixed(1)} ${["B", "KiB", "MiB", "GiB", "TiB", "PiB"][unit]}`;
};
const time = (seconds) => {
  if (seconds < 0) return "> 10 s";
  if (seconds < 1) return `${(seconds * 1000).toFixed(seconds < 0.01 ? 1 : 0)} ms`;
  if (seconds < 120) return `${Math.round(seconds)} s`;
  if (seconds < 7200) return `${Math.round(seconds / 60)} min`;
  if (seconds < 172800) return `${Math.round(seconds / 3600)} h`;
  return `${Math.round(seconds / 86400)} d`;
};
const shortName = (name) => name.replace(/^public\/default\/persistent\//, "");

function showTiles(status) {
  const broker = status.broker;
  const point = status.points.at(-1) || { in_rows: 0, in_bytes: 0, out_bytes: 0 };
  const errors = Object.values(broker.errors).reduce((sum, number) => sum + number, 0);
  const failing = Object.keys(broker.given_up).length + Object.keys(broker.unreadable).length;
  const tiles = [
    [count(broker.ledger_count), `ledgers, ${count(broker.open_ledgers)} open`],
    [`${count(point.in_rows)}/s`, `rows in, ${bytes(point.in_bytes)}/s`],
    [`${bytes(point.out_bytes)}/s`, "read"],
    [time(status.write_p50), `append p50, p99 ${time(status.write_p99)}`],
    [count(broker.connections), "connections"],
    [count(errors), "errors answered", errors > 0 && failing > 0],
    [time((broker.now_ms - broker.started_ms) / 1000), `up, epoch ${broker.epoch}`],
  ];
  if (failing) tiles.push([count(failing), "ledgers refuse appends or reads", true]);
  $("tiles").replaceChildren(...tiles.map(([value, label, bad]) => {
    const tile = make("div", bad ? "tile bad" : "tile");
    tile.append(make("b", "", value), make("span", "", label));
    return tile;
  }));
}

function chart(label, values, format) {
  const figure = make("figure");
  const caption = make("figcaption");
  caption.append(make("span", "", label), make("b", "", values.length ? format(values.at(-1)) : "…"));
  figure.append(caption);
  const ns = "http://www.w3.org/2000/svg";
  const svg = document.createElementNS(ns, "svg");
  svg.setAttribute("class", "line");
  svg.setAttribute("viewBox", "0 0 120 40");
  svg.setAttribute("preserveAspectRatio", "none");
  svg.setAttribute("role", "img");
  const top = Math.max(...values, 1e-9);
  svg.setAttribute("aria-label", `${label}: now ${values.length ? format(values.at(-1)) : "unknown"}, at most ${format(top)}`);
  if (values.length > 1) {
    const start = 120 - (values.length - 1);
    const points = values.map((value, at) => `${start + at},${(38 - 34 * value / top).toFixed(2)}`);
    for (const [kind, path] of [
      ["area", `M${start},40 L${points.join(" L")} L120,40 Z`], ["stroke", `M${points.join(" L")}`],
    ]) {
      const element = document.createElementNS(ns, "path");
      element.setAttribute("class", kind);
      element.setAttribute("d", path);
      svg.append(element);
    }
  }
  figure.append(svg);
  return figure;
}

function showCharts(points) {
  $("charts").replaceChildren(
    chart("rows in per second", points.map((point) => point.in_rows), count),
    chart("bytes in per second", points.map((point) => point.in_bytes), bytes),
    chart("bytes read per second", points.map((point) => point.out_bytes), bytes),
    chart("sync, 99th percentile", points.map((point) => point.sync_p99), time),
  );
}

const PLACES = {
  table: "in the table", bucket: "in the bucket", both: "in the bucket and on disk", local: "on disk", open: "open",
};

function strip(row) {
  const element = make("div", "strip");
  element.setAttribute("role", "img");
  element.setAttribute("aria-label", row.strip.map((part) => `${part.segments} segments ${PLACES[part.place]}`).join(", ") || "empty");
  for (const part of row.strip) {
    const span = make("span", part.place);
    span.style.flexGrow = String(Math.max(part.entries, 1));
    span.title = `${count(part.segments)} segments ${PLACES[part.place]}: ${count(part.entries)} entries, ${bytes(part.size_bytes)}`;
    element.append(span);
  }
  return element;
}

function cursor(row, now) {
  const { metrics, at, marks } = row;
  const element = make("li");
  const age = metrics.oldest_ms ? `, oldest ${time((now - metrics.oldest_ms) / 1000)}` : "";
  const parts = [
    metrics.name, metrics.leased ? "connected" : "not connected",
    metrics.backlog_rows ? `about ${count(metrics.backlog_rows)} rows behind (${bytes(metrics.backlog_bytes)}${age})` : "up to date",
  ];
  if (metrics.holes) parts.push(`${count(metrics.holes)} ranges acknowledged out of order`);
  if (metrics.redelivered_rows) parts.push(`${count(metrics.redelivered_rows)} rows redelivered`);
  if (metrics.dead_letter_rows) parts.push(`${count(metrics.dead_letter_rows)} dead letters`);
  const track = make("div", "track");
  const read = make("i");
  read.style.width = `${at * 100}%`;
  track.append(read);
  for (const [start, end] of marks) {
    const mark = make("i", "mark");
    mark.style.left = `${start * 100}%`;
    mark.style.width = `${Math.max((end - start) * 100, 0.2)}%`;
    track.append(mark);
  }
  const place = make("i", "at");
  place.style.left = `min(calc(100% - 2px), ${at * 100}%)`;
  track.append(place);
  element.append(track, make("span", "", parts.join(" · ")));
  return element;
}

function ledger(row, now) {
  const element = make("li");
  element.tabIndex = 0;
  const head = make("div", "head");
  const title = make("h3", "", shortName(row.name));
  title.title = row.name;
  head.append(title);
  element.append(head);
  if (!row.open) {
    head.append(make("span", "numbers", "not opened since the start"));
    return element;
  }
  const [rows, inBytes, outBytes] = row.rates;
  const numbers = [`${count(row.rows)} rows`, bytes(row.size_bytes)];
  if (rows || inBytes) numbers.push(`in ${count(rows)} rows/s, ${bytes(inBytes)}/s`);
  if (outBytes) numbers.push(`read ${bytes(outBytes)}/s`);
  if (row.cached_bytes) numbers.push(`${bytes(row.cached_bytes)} cached`);
  if (row.unpublished_rows !== null) numbers.push(`${count(row.unpublished_rows)} rows not in the table`);
  if (row.last_publish_ms) numbers.push(`written ${time((now - row.last_publish_ms) / 1000)} ago`);
  head.append(make("span", "numbers", numbers.join(" · ")));
  if (row.entries) element.append(strip(row));
  const cursors = make("ul", "cursors");
  cursors.append(...row.cursors.map((one) => cursor(one, now)));
  element.append(cursors);
  return element;
}

function showLedgers(status) {
  const { rows, matching, page } = status.ledgers;
  view.page = page;
  const focused = [...$("rows").children].indexOf(document.activeElement);
  $("rows").replaceChildren(...rows.map((row) => ledger(row, status.broker.now_ms)));
  if (focused >= 0) $("rows").children[Math.min(focused, rows.length - 1)]?.focus({ preventScroll: true });
  const pages = Math.max(Math.ceil(matching / 50), 1);
  $("count").textContent = `(${matching.toLocaleString("en")})`;
  $("page").textContent = `page ${page + 1} of ${pages}`;
  $("previous").disabled = page === 0;
  $("next").disabled = page + 1 >= pages;
  $("empty").hidden = rows.length > 0;
}

const list = (id, entries) => $(id).replaceChildren(...entries.flatMap(([name, value]) => [make("dt", "", name), make("dd", "", value)]));

function showRest(status) {
  const { cache, offload, object_requests: requests } = status.broker;
  const all = cache.hits + cache.misses;
  list("cache", [
    ["memory", `${bytes(cache.size_bytes)} of ${bytes(cache.limit_bytes)}`],
    ["local files", `${bytes(cache.local_file_bytes)} of ${bytes(cache.local_file_limit_bytes)} accounted`],
    ["hits", all ? `${(100 * cache.hits / all).toFixed(1)} % of ${count(all)} entries` : "nothing read yet"],
    ["served by memory", bytes(cache.memory_hit_bytes)],
    ["served by page cache", bytes(cache.page_cache_hit_bytes)],
    ["read from local files", bytes(cache.file_miss_bytes)],
    ["read from object storage", bytes(cache.object_miss_bytes)],
    ["needed by readers", `${bytes(cache.non_evictable_bytes)}, ${count(cache.expected_reads)} expected reads`],
    ["evicted", `${count(cache.evicted)} entries`],
  ]);
  const sent = requests.reduce((sum, request) => sum + request.count, 0);
  const failed = requests.reduce((sum, request) => sum + request.failed, 0);
  const running = offload.running
    ? `${shortName(offload.running)}: ${bytes(offload.running_bytes)} of ${bytes(offload.running_bytes_total)}` : "none";
  list("work", [
    ["offload running", running],
    ["offloads waiting", count(offload.waiting)],
    ["offloaded", `${count(offload.segments)} segments, ${bytes(offload.size_bytes)}`],
    ["offloads failed", count(offload.failures)],
    ["requests to S3", `${count(sent)}, ${count(failed)} failed`],
    ["waiting for a sync", bytes(status.broker.append_queue_bytes)],
  ]);
  const failing = [...Object.entries(status.broker.given_up), ...Object.entries(status.broker.unreadable)];
  const lines = [...failing.map(([name, error]) => `${shortName(name)}: ${error}`), ...status.broker.recent_errors.toReversed()];
  $("errors").replaceChildren(...(lines.length ? lines : ["none"]).map((line) => make("li", "", line)));
}

function show(status) {
  latest = status;
  $("version").textContent = status.broker.version;
  $("store").textContent = status.broker.store_path;
  document.title = `ledger · ${status.broker.store_path.split("/").at(-1)}`;
  showTiles(status);
  showCharts(status.points);
  showLedgers(status);
  showRest(status);
  document.body.dataset.ready = "yes";
}

function state(name, text) {
  $("live").dataset.state = name;
  $("live").textContent = text;
}

function connect() {
  if (source) source.close();
  source = new EventSource(`events?${new URLSearchParams(view)}`);
  source.addEventListener("status", (event) => {
    lastEvent = Date.now();
    state("live", "live");
    show(JSON.parse(event.data));
  });
  source.onerror = () => state("lost", "the broker does not answer; trying again");
}

function change(changes) {
  Object.assign(view, changes);
  connect();
}

let typing = 0;
$("filter").addEventListener("input", (event) => {
  clearTimeout(typing);
  typing = setTimeout(() => change({ filter: event.target.value, page: 0 }), 200);
});
$("sort").addEventListener("change", (event) => change({ sort: event.target.value, page: 0 }));
$("previous").addEventListener("click", () => change({ page: Math.max(view.page - 1, 0) }));
$("next").addEventListener("click", () => change({ page: view.page + 1 }));

document.addEventListener("keydown", (event) => {
  if (event.ctrlKey || event.metaKey || event.altKey) return;
  if (event.key === "Escape" && event.target === $("filter")) { $("filter").blur(); return; }
  if (event.target.matches("input, select")) return;
  const rows = [...$("rows").children];
  const at = rows.indexOf(document.activeElement);
  const acts = {
    "/": () => { event.preventDefault(); $("filter").focus(); },
    n: () => $("next").click(),
    p: () => $("previous").click(),
    s: () => $("sort").focus(),
    j: () => rows[Math.min(at + 1, rows.length - 1)]?.focus(),
    k: () => rows[Math.max(at - 1, 0)]?.focus(),
  };
  acts[event.key]?.();
});

setInterval(() => {
  if (latest && Date.now() - lastEvent > 30000) state("lost", "no event for 30 s");
}, 5000);
connect();
