// Draws the charts of a report by uPlot, from the JSON in the page (template.py): `charts`, `runs`, `axes`, `colours`.
// A chart has curves (charts.py). A curve has one piece for each start of its run: lists of times `t` and `values`.
// The reader may choose the horizontal axis (time, step or epoch), and a rank or trial whose lines are highlighted.
const page = JSON.parse(document.getElementById("data").textContent)
const TIME_UNITS = [[86400, "d"], [3600, "h"], [60, "min"], [1, "s"]] // seconds, name
const DASHES = [[], [2, 3], [8, 4], [8, 3, 2, 3]]
const INTERVALS = [...Array(12).keys()].flatMap(power => [1, 2, 5].map(digit => digit * 10 ** (power - 3))) // of ticks
// Width and opacity of a line, by the kind of its curve. "most" and "least" are the borders of the band of all ranks.
const LOOKS = {most: [0.5, 1], least: [0.5, 1], median: [1.5, 1], faint: [1.5, 0.3], "": [1.5, 1]}
const readColour = name => getComputedStyle(document.documentElement).getPropertyValue(`--${name}`)
const format = (value, digits) => value.toLocaleString("en", {maximumSignificantDigits: digits})
let plots = [], picked = null // `picked`: the name of the highlighted line

// The position on an axis, such as the step, at time `t` of a run. It is interpolated in the run's clock for the axis:
// times, and the positions at these times. null outside of the clock.
function locate(run, axis, t) {
  const clock = page.runs[run]?.clocks[axis]
  if (axis === "time" || !clock) return t
  const [times, positions] = clock
  if (t < times[0] || t > times.at(-1)) return null
  let low = 0, high = times.length - 1
  while (high - low > 1) {
    const middle = (low + high) >> 1
    if (times[middle] <= t) low = middle
    else high = middle
  }
  const fraction = times[high] > times[low] ? (t - times[low]) / (times[high] - times[low]) : 1
  return positions[low] + fraction * (positions[high] - positions[low])
}

// The positions and values of a curve. A null before each piece but the first makes a gap between two starts of a run.
function tabulate(curve, axis) {
  const points = curve.t.flatMap((times, piece) => {
    const known = times.map((t, n) => [locate(curve.run, axis, t), curve.values[piece][n]]).filter(([x]) => x !== null)
    return piece && known.length ? [[known[0][0] - 1e-9, null], ...known] : known
  })
  return [points.map(([x]) => x), points.map(([, y]) => y)]
}

// The size of the unit of an axis that ends at `end`, and its name.
function chooseUnit(axis, end) {
  if (axis !== "time") return [1, `${axis}s`]
  return TIME_UNITS.find(([seconds]) => end >= 2 * seconds) ?? TIME_UNITS[3]
}

// Draw vertical lines for the events of the runs, each with its text; texts of neighbours lie below each other.
function drawMarks(plot, axis) {
  const marks = page.runs.flatMap((run, index) => run.marks.map(([t, text]) => [locate(index, axis, t), text]))
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

// Draw a chart into the element `figure` of the page.
function draw(figure, chart, axis) {
  const data = uPlot.join(chart.curves.map(curve => tabulate(curve, axis)))
  const [unitSize, unit] = chooseUnit(axis, data[0].at(-1))
  const stroke = readColour("ink"), grid = {stroke: readColour("faint"), width: 1}, ticks = {show: false}
  const plot = new uPlot({
    width: figure.clientWidth, height: 240, padding: [8, 28, 0, 0],
    cursor: {sync: {key: axis, scales: ["x", null]}, drag: {x: true, y: false}},
    scales: {
      x: {time: false},
      y: {range: (_, low, high) => {
        if (low === null) return [0, 1] // no values
        low = chart.zero ? Math.min(low, 0) : low
        high = Math.min(high, chart.most ?? high)
        // Above and below the values, except below a lowest value of 0 on an axis from 0.
        const room = (high - low || Math.abs(high) || 1) * 0.05
        return [chart.zero && low === 0 ? 0 : low - room, high + room]
      }},
    },
    axes: [
      {stroke, grid, ticks, space: 90,
       incrs: axis === "time" ? INTERVALS.map(size => size * unitSize) : INTERVALS.filter(size => size >= 1),
       values: (_, ticks) => ticks.map(value => `${format(value / unitSize, 6)} ${unit}`)},
      {stroke, grid, ticks, size: 62, values: (_, ticks) => ticks.map(value => format(value, 4))},
    ],
    series: [
      {label: axis, value: (_, value) => value == null ? "" : `${format(value / unitSize, 5)} ${unit}`},
      ...chart.curves.map(curve => ({
        label: curve.name, stroke: curve.colour === null ? stroke : page.colours[curve.colour % page.colours.length],
        // Dashes tell runs apart, and lines with the same colour.
        dash: DASHES[(2 * curve.run + (curve.colour >= page.colours.length)) % DASHES.length],
        value: (_, value) => value == null ? "" : format(value, 6), points: {show: curve.t.flat().length < 30},
      })),
    ],
    // Fill the band between "most" and "least", which is the next curve. Series 0 of uPlot is the horizontal axis.
    bands: chart.curves.flatMap((curve, index) =>
      curve.kind === "most" ? [{series: [index + 1, index + 2], fill: readColour("soft")}] : []),
  }, data, figure.querySelector(".chart"))
  drawMarks(plot, axis)
  plots.push(plot)
}

// Draw all charts by the chosen axis; null: each by its own. Charts by another quantity, such as trials, keep theirs.
function drawAll(axis) {
  plots.forEach(plot => plot.destroy())
  plots = []
  document.querySelectorAll("[data-chart]").forEach(figure => {
    const chart = page.charts[figure.dataset.chart]
    draw(figure, chart, page.axes.includes(chart.axis) ? axis ?? chart.axis : chart.axis)
  })
  for (const key of document.querySelectorAll("button[data-axis]"))
    key.setAttribute("aria-pressed", key.dataset.axis === (axis ?? ""))
  highlight(picked)
}

// Highlight the line `label` in all charts, and dim the others of its kind: for "rank 3", all other ranks. null: none.
function highlight(label) {
  picked = label
  const kind = label?.split(" ").slice(0, -1).join(" ")
  const isDim = other => label !== null && other !== label && other.startsWith(kind)
  plots.forEach((plot, index) => {
    page.charts[index].curves.forEach((curve, n) => {
      const isPicked = curve.name === label, [width, alpha] = LOOKS[curve.kind], series = plot.series[n + 1]
      series.alpha = isDim(curve.name) ? 0.1 : isPicked ? 1 : alpha
      series.width = isPicked ? 3 : width
    })
    plot.redraw(false)
  })
  for (const line of document.querySelectorAll("path[data-of]")) { // of the drawing of trials
    line.classList.toggle("dim", isDim(line.dataset.of))
    line.classList.toggle("picked", line.dataset.of === label)
  }
}

drawAll(null)
for (const key of document.querySelectorAll("button[data-axis]")) key.onclick = () => drawAll(key.dataset.axis || null)
for (const key of document.querySelectorAll("button[data-of]"))
  key.onclick = () => highlight(picked === key.dataset.of ? null : key.dataset.of)
addEventListener("resize", () => plots.forEach(plot =>
  plot.setSize({width: plot.root.parentElement.clientWidth, height: 240})))
