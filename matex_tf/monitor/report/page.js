// The charts of a report, drawn by uPlot from the data in the page. Their axis is by time, step or epoch.
const page = JSON.parse(document.getElementById("data").textContent)
const SPANS = [[86400, "d"], [3600, "h"], [60, "min"], [1, "s"]], DASHES = [[], [2, 3], [8, 4], [8, 3, 2, 3]]
const STEPS = [...Array(12).keys()].flatMap(power => [1, 2, 5].map(one => one * 10 ** (power - 3)))
const ink = name => getComputedStyle(document.documentElement).getPropertyValue(`--${name}`)
const show = (value, digits) => value.toLocaleString("en", {maximumSignificantDigits: digits})
const LOOKS = {most: [0.5, 1], least: [0.5, 1], median: [1.5, 1], faint: [1.5, 0.3], "": [1.5, 1]} // width, opacity
let plots = [], picked = null

// Where a time of a run lies on an axis; null where the run does not say.
function place(run, axis, t) {
  const clock = page.runs[run]?.clocks[axis]
  if (axis === "time" || !clock) return t
  const [times, places] = clock
  if (t < times[0] || t > times.at(-1)) return null
  let low = 0, high = times.length - 1
  while (high - low > 1) times[(low + high) >> 1] <= t ? low = (low + high) >> 1 : high = (low + high) >> 1
  const share = times[high] > times[low] ? (t - times[low]) / (times[high] - times[low]) : 1
  return places[low] + share * (places[high] - places[low])
}

// The table of a curve: places and values, with a gap between two starts.
function tabulate(curve, axis) {
  const rows = curve.t.flatMap((times, piece) => {
    const found = times.map((t, n) => [place(curve.run, axis, t), curve.values[piece][n]]).filter(row => row[0] !== null)
    return piece && found.length ? [[found[0][0] - 1e-9, null], ...found] : found
  })
  return [rows.map(row => row[0]), rows.map(row => row[1])]
}

function name(axis, end) {
  if (axis !== "time") return [1, `${axis}s`]
  return SPANS.find(([seconds]) => end >= 2 * seconds) ?? SPANS[3]
}

// Vertical lines where something happened, each with its text beside it; texts of neighbours lie below each other.
function mark(plot, axis) {
  const marks = page.runs.flatMap((run, at) => run.marks.map(([t, text]) => [place(at, axis, t), text]))
  const drawn = marks.filter(([x]) => x !== null).map(([x, text], number) => {
    const line = document.createElement("div"), label = line.appendChild(document.createElement("span"))
    line.className = "mark"
    line.title = label.textContent = text
    label.style.top = `${1.3 * (number % 4)}em`
    plot.over.append(line)
    return [x, line]
  })
  plot.hooks.draw = [() => {
    for (const [x, line] of drawn) {
      const left = plot.valToPos(x, "x"), width = plot.over.clientWidth
      line.hidden = !(left >= 0 && left <= width)
      line.classList.toggle("right", left > width / 2)
      line.style.left = `${left}px`
    }
  }]
  plot.hooks.draw[0]()
}

function draw(figure, chart, axis) {
  const data = uPlot.join(chart.curves.map(curve => tabulate(curve, axis)))
  const [of, unit] = name(axis, data[0].at(-1))
  const stroke = ink("ink"), grid = {stroke: ink("faint"), width: 1}, ticks = {show: false}
  const plot = new uPlot({
    width: figure.clientWidth, height: 240, padding: [8, 28, 0, 0],
    cursor: {sync: {key: axis, scales: ["x", null]}, drag: {x: true, y: false}},
    scales: {
      x: {time: false},
      y: {range: (_, low, high) => {
        if (low === null) return [0, 1]
        low = chart.zero ? Math.min(low, 0) : low
        high = Math.min(high, chart.most ?? high)
        const room = (high - low || Math.abs(high) || 1) * 0.05
        return [chart.zero && low === 0 ? 0 : low - room, high + room]
      }},
    },
    axes: [
      {stroke, grid, ticks, incrs: axis === "time" ? STEPS.map(one => one * of) : STEPS.filter(one => one >= 1),
       values: (_, at) => at.map(value => `${show(value / of, 6)} ${unit}`), space: 90},
      {stroke, grid, ticks, size: 62, values: (_, at) => at.map(value => show(value, 4))},
    ],
    series: [
      {label: axis, value: (_, value) => value == null ? "" : `${show(value / of, 5)} ${unit}`},
      ...chart.curves.map(curve => ({
        label: curve.name, stroke: curve.colour === null ? stroke : page.colours[curve.colour % page.colours.length],
        dash: DASHES[(2 * curve.run + (curve.colour >= page.colours.length)) % DASHES.length], value: (_, value) => value == null ? "" : show(value, 6),
        points: {show: curve.t.flat().length < 30},
      })),
    ],
    bands: chart.curves.flatMap((curve, at) =>
      curve.kind === "most" ? [{series: [at + 1, at + 2], fill: ink("soft")}] : []),
  }, data, figure.querySelector(".chart"))
  mark(plot, axis)
  plots.push(plot)
}

// `axis` is the one that is asked for; each chart begins with its own.
function drawAll(axis) {
  plots.forEach(plot => plot.destroy())
  plots = []
  document.querySelectorAll("[data-chart]").forEach(figure => {
    const chart = page.charts[figure.dataset.chart]
    draw(figure, chart, page.axes.includes(chart.axis) ? axis ?? chart.axis : chart.axis)
  })
  for (const key of document.querySelectorAll("button[data-axis]"))
    key.setAttribute("aria-pressed", key.dataset.axis === (axis ?? ""))
  bringOut(picked)
}

// The other lines of its kind are faint.
function bringOut(of) {
  picked = of
  const kind = of?.split(" ").slice(0, -1).join(" ")
  const isDim = label => of !== null && label !== of && label.startsWith(kind)
  plots.forEach((plot, at) => {
    page.charts[at].curves.forEach((curve, n) => {
      const isPicked = curve.name === of, [width, alpha] = LOOKS[curve.kind]
      plot.series[n + 1].alpha = isDim(curve.name) ? 0.1 : isPicked ? 1 : alpha
      plot.series[n + 1].width = isPicked ? 3 : width
    })
    plot.redraw(false)
  })
  for (const line of document.querySelectorAll("path[data-of]")) {
    line.classList.toggle("dim", isDim(line.dataset.of))
    line.classList.toggle("picked", line.dataset.of === of)
  }
}

drawAll(null)
for (const key of document.querySelectorAll("button[data-axis]")) key.onclick = () => drawAll(key.dataset.axis || null)
for (const key of document.querySelectorAll("button[data-of]"))
  key.onclick = () => bringOut(picked === key.dataset.of ? null : key.dataset.of)
addEventListener("resize", () => plots.forEach(plot =>
  plot.setSize({width: plot.root.parentElement.clientWidth, height: 240})))
