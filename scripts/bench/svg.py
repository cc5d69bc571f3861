"""Line and bar charts as SVG, drawn by hand so that a report needs nothing but a browser.

The idea: one look for all plots. Axes start at zero, lines are told apart by colour and by the shape of their points, and
every point carries its value as a tooltip.
"""

import html
import math

WIDTH, HEIGHT = 560, 320
LEFT, RIGHT, TOP, BOTTOM = 64, 176, 34, 46  # room for labels, and for the legend on the right
COLOURS = ("#0b5fa5", "#c2410c", "#15803d", "#7e22ce", "#a16207", "#0e7490", "#be123c", "#4b5563")


def nice_step(largest, ticks=5):
    """A round distance of ticks, so that about `ticks` of them reach `largest`."""
    if largest <= 0:
        return 1
    rough = largest / ticks
    power = 10 ** math.floor(math.log10(rough))
    return next(factor * power for factor in (1, 2, 2.5, 5, 10) if factor * power >= rough)


def text(x, y, words, anchor="start", more=""):
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}" {more}>{html.escape(str(words))}</text>'


class Frame:
    """The drawing area with its axes: x as equal places, y from zero up to `largest`."""

    def __init__(self, title, x_label, y_label, places, largest):
        self.places = places
        self.step = nice_step(largest)
        self.top = self.step * max(1, math.ceil(largest / self.step))
        self.parts = [text(LEFT, 18, title, more='font-weight="bold"')]
        self.parts.append(text((LEFT + WIDTH - RIGHT) / 2, HEIGHT - 8, x_label, "middle"))
        turned = f'transform="rotate(-90 14 {HEIGHT / 2})"'
        self.parts.append(text(14, HEIGHT / 2, y_label, "middle", turned))
        self.ticks()

    def x(self, place):
        width = (WIDTH - LEFT - RIGHT) / len(self.places)
        return LEFT + width * (self.places.index(place) + 0.5)

    def y(self, value):
        return HEIGHT - BOTTOM - (HEIGHT - TOP - BOTTOM) * value / self.top

    def ticks(self):
        for number in range(round(self.top / self.step) + 1):
            value = number * self.step
            y = self.y(value)
            self.parts.append(f'<line x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{y:.1f}" y2="{y:.1f}" stroke="#ddd"/>')
            self.parts.append(text(LEFT - 6, y + 4, f"{value:g}", "end"))
        for place in self.places:
            self.parts.append(text(self.x(place), HEIGHT - BOTTOM + 16, place, "middle"))

    def legend(self, number, name, mark):
        y = TOP + 8 + 18 * number
        x = WIDTH - RIGHT + 14
        self.parts.append(mark(x, y))
        self.parts.append(text(x + 12, y + 4, name))

    def svg(self):
        head = (
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" width="{WIDTH}" height="{HEIGHT}"'
        )
        return "\n".join([f'{head} font-family="sans-serif" font-size="12" role="img">', *self.parts, "</svg>"])


def marker(number, tip=""):
    """A function that draws the point of line `number` at a place."""
    colour = COLOURS[number % len(COLOURS)]
    inner = f"<title>{html.escape(tip)}</title>"

    def mark(x, y):
        if number % 3 == 0:
            return f'<circle cx="{x:.1f}" cy="{y:.1f}" r="4" fill="{colour}">{inner}</circle>'
        if number % 3 == 1:
            return f'<rect x="{x - 4:.1f}" y="{y - 4:.1f}" width="8" height="8" fill="{colour}">{inner}</rect>'
        points = f"{x:.1f},{y - 5:.1f} {x - 5:.1f},{y + 4:.1f} {x + 5:.1f},{y + 4:.1f}"
        return f'<polygon points="{points}" fill="{colour}">{inner}</polygon>'

    return mark


def dash(style):
    """A function that draws a piece of a line across at a place."""
    return lambda x, y: f'<line x1="{x - 6}" x2="{x + 8}" y1="{y}" y2="{y}" {style}/>'


def square(colour):
    """A function that draws a square of bars' colour at a place."""
    return lambda x, y: f'<rect x="{x - 5}" y="{y - 5}" width="10" height="10" fill="{colour}"/>'


def lines(title, x_label, y_label, series, levels=()):
    """A line chart. `series`: name -> {x: y}; `levels`: pairs of a name and a value drawn across."""
    places = sorted({x for points in series.values() for x in points})
    largest = max([y for points in series.values() for y in points.values()] + [value for _, value in levels])
    frame = Frame(title, x_label, y_label, places, largest)
    for number, (name, points) in enumerate(series.items()):
        colour = COLOURS[number % len(COLOURS)]
        places_of = [(frame.x(x), frame.y(y)) for x, y in sorted(points.items())]
        path = " ".join(f"{x:.1f},{y:.1f}" for x, y in places_of)
        frame.parts.append(f'<polyline points="{path}" fill="none" stroke="{colour}" stroke-width="2"/>')
        for (x, y), (place, value) in zip(places_of, sorted(points.items())):
            frame.parts.append(marker(number, f"{name}, {place}: {value:.0f}")(x, y))
        frame.legend(number, name, marker(number))
    for number, (name, value) in enumerate(levels, len(series)):
        y, colour = frame.y(value), COLOURS[number % len(COLOURS)]
        dashes = f'stroke="{colour}" stroke-dasharray="6 4" stroke-width="1.5"'
        frame.parts.append(f'<line x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{y:.1f}" y2="{y:.1f}" {dashes}/>')
        frame.legend(number, name, dash(dashes))
    return frame.svg()


def bars(title, x_label, y_label, series):
    """Groups of bars. `series`: name -> {x: y}."""
    places = list(dict.fromkeys(x for points in series.values() for x in points))
    largest = max(y for points in series.values() for y in points.values())
    frame = Frame(title, x_label, y_label, places, largest)
    width = (WIDTH - LEFT - RIGHT) / len(places) * 0.8 / len(series)
    for number, (name, points) in enumerate(series.items()):
        colour = COLOURS[number % len(COLOURS)]
        for place, value in points.items():
            x = frame.x(place) + width * (number - len(series) / 2)
            y = frame.y(value)
            tip = f"<title>{html.escape(f'{name}, {place}: {value:.0f}')}</title>"
            box = f'x="{x:.1f}" y="{y:.1f}" width="{width:.1f}" height="{HEIGHT - BOTTOM - y:.1f}"'
            frame.parts.append(f'<rect {box} fill="{colour}">{tip}</rect>')
        frame.legend(number, name, square(colour))
    return frame.svg()
