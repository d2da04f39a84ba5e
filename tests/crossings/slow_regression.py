"""Kernel regression by its documented formulas, query by query in double precision, given a fit's bandwidths."""

import math
from functools import cache, cached_property

import numpy as np
from scipy.special import logsumexp, stdtr, stdtrit

AMOUNTS = [math.inf, *10.0 ** np.arange(3, -7, -1)]  # of the plane's ridge


class Slow:
    """A fitted model, of its public attributes alone; rows of weight 0 are not there, and no two rows are equal."""

    def __init__(self, model):
        self.kernel, self.linear, self.ridge = model.kernel_, model.order_ == "linear", model.ridge_
        self.model, self.there = model, model.sample_weight_ > 0
        self.weight = model.sample_weight_[self.there].astype(float)
        self.precise = model.weights_ == "precision"
        self.unit = self.weight.mean() if self.precise else 1.0
        self.weight /= self.unit
        self.count = np.ones_like(self.weight) if self.precise else self.weight  # of rows that err
        y = np.asarray(model.y_train_, float)
        self.y = y.reshape(len(y), -1)[self.there]
        kinds = [column.kind for column in model.columns_] or ["number"] * model.X_train_.shape[1]
        self.plain = [j for j, kind in enumerate(kinds) if kind in ("number", "date")]
        self.coded = [(j, model.columns_[j]) for j in range(len(kinds)) if j not in self.plain]
        self.logs = {j: column.log for j, column in enumerate(model.columns_) if column.log}
        self.metric = np.eye(len(self.plain)) if model.metric_ is None else model.metric_
        self.size = self.metric.shape[1]
        found = (
            model.bandwidth_ if model.metric_ is not None else model.bandwidth_[self.plain + [j for j, _ in self.coded]]
        )
        self.rates = found[self.size :]
        self.features = len(found)
        self.rows = self.at(model.X_train_[self.there].astype(float))
        sizes = [len(self._widths(each, rate)) for each, rate in zip(self.coded, self.rates, strict=True)]
        self.feature = np.repeat(np.arange(self.features), [1] * self.size + sizes)
        self.sigma = np.concatenate([found[: self.size], *map(self._widths, self.coded, self.rates)])
        mean = self.weight @ self.rows / self.weight.sum()
        self.spread = np.sqrt(self.weight @ (self.rows - mean) ** 2 / self.weight.sum())[: self.size]
        self.folds = None if model.folds_ is None else model.folds_[:, self.there]
        self.everyone = np.ones(len(self.rows), bool)

    def compared(self, x):
        """Cells with logarithms in place of the numbers that have them, and tangents below the smallest number."""
        x = np.array(x, float)
        for j, (smallest, offset) in self.logs.items():
            cells = np.maximum(x[:, j], 0)
            tangent = math.log(smallest + offset) + (cells - smallest) / (smallest + offset)
            x[:, j] = np.where(cells < smallest, tangent, np.log(np.maximum(cells, smallest) + offset))
        return x

    def at(self, x):
        """Numbers along the directions; a category at a corner, each 1 from the others; an order as steps; a circle."""
        x = self.compared(x)
        parts = [x[:, self.plain] @ self.metric]
        for j, column in self.coded:
            count = len(column.levels)
            if column.kind == "periodic":
                angle = 2 * np.pi * x[:, j] / column.levels[0]
                parts.append(np.column_stack([np.cos(angle), np.sin(angle)]) / 2)
            elif column.kind == "ordered":
                parts.append((x[:, j, None] > np.arange(count - 1)).astype(float))
            else:
                parts.append(np.eye(count)[x[:, j].astype(int)] / math.sqrt(2))
        return np.hstack(parts)

    def _widths(self, coded, rate):
        _, column = coded
        count = len(column.levels)
        if column.kind == "periodic":
            return np.full(2, rate * np.pi / column.levels[0])
        other = rate if column.kind == "ordered" else rate / ((count - 1) * (1 - rate))  # over that of the same level
        sigma = min(1 / math.sqrt(-2 * math.log(other)), 1e6) if other < 1 else 1e6
        return np.full(count - (column.kind == "ordered"), sigma)

    def log_near(self, place, width):
        """log K of each row: K itself underflows at 38 bandwidths."""
        square = (((self.rows - place) / width) ** 2).sum(1)
        with np.errstate(divide="ignore"):
            return -square / 2 if self.kernel == "gaussian" else np.log(np.maximum(0, 1 - square))

    def near(self, place, width):
        """K of each row."""
        return np.exp(self.log_near(place, width))

    def shares(self, place, width, weight):
        """The shares of rows in the sum of K times a weight, and the logarithm of that sum."""
        with np.errstate(divide="ignore"):
            mass = np.log(weight) + self.log_near(place, width)
        if (most := mass.max()) == -np.inf:
            return np.zeros_like(mass), most
        total = most + math.log(np.exp(mass - most).sum())
        return np.exp(mass - total), total

    def plane(self, kept, base):
        """The slopes of a plane through rows, of the numbers or of all coordinates, and drawn to 0 as much, as is best
        where each of the others is left out."""
        return self._slopes(kept.tobytes(), base.tobytes(), None)

    @property
    def steps(self):
        """True where lines are drawn to a plane that has steps for categories."""
        return bool(self.linear and self.ridge > 0 and self.plane(self.everyone, self.everyone)[self.size :].any())

    @cache  # noqa: B019  # for as long as the test's models
    def _slopes(self, kept, base, known, of_units=False):
        kept, base = np.frombuffer(kept, bool), np.frombuffer(base, bool)
        share = np.where(base, self.weight, 0.0) / self.weight[base].sum()
        unit = np.sqrt(np.bincount(self.feature, share @ (self.rows - share @ self.rows) ** 2))[self.feature]
        unit = np.where(unit > 0, unit, 1.0)
        if known is None:
            errors, tried = [], [(size, amount) for size in (self.size, len(unit)) for amount in AMOUNTS]
            for each in tried:
                left = []
                for i in np.flatnonzero(base):
                    own = base & (self.rows == self.rows[i]).all(1)  # with gaps some are in one place
                    rest = base & ~own
                    line = self.y - self.rows @ self._slopes(rest.tobytes(), base.tobytes(), each)
                    mean, others = (share[some] @ line[some] / share[some].sum() for some in (own, rest))
                    left.append(np.mean((mean - others) ** 2))
                errors.append(share[base] @ left)
            known = tried[int(np.argmin(errors))]
        share = np.where(kept, share, 0.0)
        (size, amount), y = known, np.eye(len(kept)) if of_units else self.y
        z, slope = (self.rows / unit)[:, :size], np.zeros((self.rows.shape[1], y.shape[1]))
        if np.isinf(amount):
            return slope
        z, y = (each - share @ each / share.sum() for each in (z, y))
        system = z.T @ (share[:, None] * z) + amount * np.eye(size)
        slope[:size] = np.linalg.solve(system, z.T @ (share[:, None] * y)) / unit[:size, None]
        return slope

    def line(self, place, width, kept=None, ridge=None, linear=None, base=None, drawn=True):
        """Return the estimate, the share of each row's y in it, and its variance over that of one row's noise."""
        kept = self.everyone if kept is None else kept
        linear, ridge = (self.linear, self.ridge) if ridge is None else (linear, ridge)
        share, total = self.shares(place, width, np.where(kept, self.weight, 0.0))
        if not share.any():  # out of reach: the nearest row
            away = (((self.rows - place) / width) ** 2).sum(1)
            row = self.weight * (away == away.min())
            return row @ self.y / row.sum(), row / row.sum(), np.inf
        z = np.hstack([np.ones((len(share), 1)), (self.rows - place)[:, : self.size] * linear])
        narrow = width[: self.size]
        held = ridge * self.spread**2 * narrow**2 / (self.spread**2 + narrow**2) if linear else np.ones(self.size)
        over = math.exp(min(-total, 690))
        held = np.minimum(held * over, 1e200)
        inverse = np.linalg.inv(z.T @ (share[:, None] * z) + np.diag([0, *held]))
        row = inverse[0] @ z.T * share
        if not linear:
            return row @ self.y, row, over
        slope = np.zeros((self.rows.shape[1], self.y.shape[1]))
        if drawn and self.ridge > 0:
            slope = self.plane(kept, self.everyone if base is None else base)
        self.bias = (inverse[0, 1:] * held) @ (inverse @ z.T @ (share[:, None] * self._beyond(slope)))[1:]
        return row @ self._beyond(slope) + place @ slope, row, inverse[0, 0] * over

    def _beyond(self, slope):
        return self.y - self.rows @ slope

    def predict(self, x):
        return np.array([self.line(place, self.sigma)[0] for place in self.at(x)])

    @cached_property
    def left_out(self):
        """Each row less its estimate from the others, and what is left of its noise in its residual."""
        errors, shares = [], []
        for i, place in enumerate(self.rows):
            others = np.arange(len(self.rows)) != i
            estimate, _, variance = self.line(place, self.sigma, others)
            if np.isinf(variance):  # no row is in reach: the mean of the others is the estimate
                estimate = self.weight[others] @ self.y[others] / self.weight[others].sum()
            errors.append(self.y[i] - estimate)
            shares.append(1 / (1 + self.weight[i] * variance))
        return np.array(errors), np.array(shares)

    @cached_property
    def tested(self):
        """Rows and folds they are tested in, and their errors there."""
        pairs = [(k, i) for k, own in enumerate(self.folds) for i in np.flatnonzero(own == 2)]
        errors = [self.y[i] - self._by_fold(k, self.rows[i]) for k, i in pairs]
        return pairs, np.array(errors)

    def _by_fold(self, k, place):
        learned = self.folds[k] == 1
        return self.line(place, self.sigma, learned, base=learned)[0]

    def _looked_at(self, place, width):
        """The mean place that a query looks at."""
        return self.shares(place, width, self.weight)[0] @ self.rows

    def noise(self, place):
        """τ², s² and ν about a place."""
        errors, shares = self.left_out
        share, _ = self.shares(place, 2 * self.sigma, self.count)
        rest = share @ (1 - (1 - shares) / np.maximum(self.count, 1))
        errors = errors * np.sqrt(self.weight / self.count)[:, None]
        enough = rest > 1e-5  # else there are as many numbers as rows, and nothing tells noise
        square = share @ (shares[:, None] * errors) ** 2 / rest if enough else np.full(self.y.shape[1], np.inf)
        freedom = rest / (share**2 / self.count).sum()
        if self.folds is None:
            return share @ errors**2, square, freedom
        pairs, held = self.tested
        rows, alike, loss = np.array([i for _, i in pairs]), self.alikes, np.empty_like(errors)
        loss[rows] = held**2 * (self.weight / self.count)[rows, None]
        square = square * rest * alike / np.maximum(1 - alike * (1 - rest), rest / 4) if enough else square
        return share @ loss, square, min(freedom, len(self.folds))

    @cached_property
    def alikes(self):
        """κ of each output."""
        pairs, held = self.tested
        folds, weight = np.array([k for k, _ in pairs]), self.weight[[i for _, i in pairs], None]
        weighted = (np.sqrt(weight) if self.precise else weight) * held
        sums = np.array([weighted[folds == k].sum(0) for k in range(len(self.folds))])
        alike = np.maximum(1, (sums**2).sum(0) / (weighted**2).sum(0))
        return np.array([self._uncut(each) for each in alike])

    def _uncut(self, alike):
        """κ where the folds are runs of rows, whose errors go on in the next run."""
        tested = [np.flatnonzero(own == 2) for own in self.folds]
        b = min(map(len, tested))
        if b < 2 or any((np.diff(own) != 1).any() for own in tested):
            return alike
        low, high = 0.0, 0.999
        for _ in range(60):
            rho = (low + high) / 2
            low, high = (rho, high) if 1 + 2 * sum((1 - j / b) * rho**j for j in range(1, b)) < alike else (low, rho)
        return min((1 + low) / (1 - low), 1.5 * alike)

    def _open(self, place, width):
        """b: what a ridge of 1/4 leaves open."""
        k, mean = self.weight * self.near(place, width), self._looked_at(place, width)
        about, narrow = (self.rows - mean)[:, : self.size], width[: self.size]
        held = 0.25 * self.spread**2 * narrow**2 / (self.spread**2 + narrow**2)
        gain = np.linalg.solve(about.T @ (k[:, None] * about) + np.diag(held), (place - mean)[: self.size])
        return gain**2 @ held

    def lacking(self, x):
        """The columns whose cells are missing, of each row."""
        result = [set() for _ in x]
        for j, column in enumerate(self.model.columns_):
            if column.levels and column.levels[-1] in ("missing", "(missing)"):
                for i in np.flatnonzero(x[:, j] == len(column.levels) - 1):
                    result[i].add(int(column.origin or j))
        return result

    def unknown(self, x):
        """The variance of what missing cells could have said."""
        rows, columns = self.model.X_train_[self.there].astype(float), self.model.columns_
        result = np.zeros((len(x), self.y.shape[1]))
        for i, lost in enumerate(self.lacking(x)):
            known = np.array([not lost <= other for other in self.lacking(rows)])
            if not lost or not known.any():
                continue
            changed = rows[known].copy()
            for j in lost:
                gap = [k for k, each in enumerate(columns) if each.origin == str(j)]
                changed[:, gap] = 1
                changed[:, j] = columns[j].levels[0] if gap else len(columns[j].levels) - 1
            apart = self.predict(rows[known]) - self.predict(changed)
            result[i] = self.weight[known] @ apart**2 / self.weight.sum()
        return result

    def std(self, x):
        found = []
        for place in self.at(x):
            total, square = self.errors_of_values(place)
            found.append(np.sqrt(total + square * self._open(place, self.sigma)))
        return np.sqrt(np.array(found) ** 2 + self.unknown(x))

    def confidence_interval(self, x, level):
        ends = []
        for place, unknown in zip(self.at(x), self.unknown(x), strict=True):
            narrow = self.sigma * 0.5 ** (1 / self.features)
            drawn = self.linear and self.ridge > 0
            ridge = min(self.ridge, 0.25) if drawn else 0.25
            center, row, _ = self.line(place, narrow, ridge=ridge, linear=True, drawn=drawn)
            bias = self.bias  # of this line: the noise fits others
            if drawn:
                every = self.everyone.tobytes()
                row = row + (place - row @ self.rows) @ self._slopes(every, every, None, of_units=True)
            _, square, freedom = self.noise(self._looked_at(place, narrow))
            error = square * (row**2 / self.weight).sum() + square * self._open(place, narrow)
            error = np.sqrt(error + bias**2 + unknown)
            half = stdtrit(freedom, (1 + level) / 2) * error if freedom >= 0.5 else np.full_like(center, np.inf)
            ends.append((center - half, center + half))
        return np.array(ends).transpose(1, 0, 2)

    def jackknife(self, x, coverage):
        """Jackknife+, or CV+ by folds."""
        pairs = [(None, i) for i in range(len(self.rows))] if self.folds is None else self.tested[0]
        rows, ends = [i for _, i in pairs], []
        errors, weight = np.abs(self.errors(rows)), self.count[rows]
        for place in self.at(x):
            width = self.sigma
            centers = [
                self.line(place, width, np.arange(len(self.rows)) != i)[0] if k is None else self._by_fold(k, place)
                for k, i in pairs
            ]
            centers = np.array(centers)[:, 0]
            off = self.grown(place, errors)
            ends.append([sign * quantile(off + sign * centers, weight, coverage, self.alike) for sign in (-1, 1)])
        return widened(*np.array(ends).T, coverage, self.unknown(x))

    def distribution(self, place):
        """The values that a new one may have at a place, and their probabilities, which are less than 1 in all."""
        rows = np.arange(len(self.rows)) if self.folds is None else [i for _, i in self.tested[0]]
        errors, middle = self.errors(rows), self._looked_at(place, self.sigma)
        width, weight = 2 * self.sigma, self.count[rows]
        for _ in range(20):
            k = weight * self.near(middle, width)[rows]
            if k.sum() >= min(50, 0.8 * weight.sum()):
                break
            width = width * 1.5
        return self.line(place, self.sigma)[0][0] + self.grown(place, errors), k / (1 + k.sum())

    def errors(self, rows):
        """Errors of rows, of precisions as those of rows of the mean one."""
        errors = self.left_out[0] if self.folds is None else self.tested[1]
        return errors[:, 0] * np.sqrt(self.weight / self.count)[rows]

    def errors_of_values(self, place):
        """τ² and s² about the rows that a place looks at; τ² twice if a shrunk line interpolates."""
        total, square, _ = self.noise(self._looked_at(place, self.sigma))
        shrinks = self.linear and self.ridge > 0 and len(self.rows) > 1
        return total, np.where(np.isinf(square) & shrinks, total, square)

    def growth(self, place, weight=1):
        """The deviation of a new value at a place over that of the rows it looks at."""
        total, square = self.errors_of_values(place)
        return math.sqrt(1 / weight + (square * self._open(place, self.sigma) / total)[0])

    def grown(self, place, errors):
        """Errors at a place; infinite if nothing tells how far off it is."""
        growth = self.growth(place)
        return np.copysign(np.inf, errors) if np.isinf(growth) else growth * errors

    @property
    def alike(self):
        """As how many rows the errors of a fold count."""
        return 1 if self.folds is None else self.alikes[0]

    def quantiles(self, x, levels):
        result = []
        for place, unknown in zip(self.at(x), self.unknown(x)[:, 0], strict=True):
            values, share = self.distribution(place)
            order, rest = np.argsort(values), 1 - share.sum()
            ends = []
            for q in levels:
                tail = min(q, 1 - q)
                more = max(rest, min(tail, 1 / (1 + share.sum() / rest / self.alike)))
                reached = more / 2 + np.cumsum(share[order]) / share.sum() * (1 - more)
                ends.append(np.inf if tail < rest else values[order][(reached < q).sum()])
            center = self.line(place, self.sigma)[0][0]
            for k, (end, q) in enumerate(zip(ends, levels, strict=True)):
                more, off = stdtrit(5, q) * math.sqrt(unknown), end - center
                wider = math.copysign(math.hypot(off, more) - abs(off), more) if np.isfinite(end) else 0.0
                ends[k] = math.copysign(end, q - 0.5) if np.isinf(end) else end + wider * (more != 0)
            result.append(ends)
        return np.array(result)

    def attention(self, x):
        result = np.zeros((len(x), len(self.there)))
        for row, place in zip(result, self.at(x), strict=False):
            row[self.there] = self.shares(place, self.sigma, self.weight)[0]
        return result

    def neighbors(self, x):
        around = [self.shares(place, self.sigma, self.weight)[0] for place in self.at(x)]
        return np.array([1 / (share**2 / self.weight).sum() for share in around])

    def log_density(self, x):
        d = self.size
        volume = math.pi ** (d / 2) / math.gamma(d / 2 + 1)
        height = (2 * math.pi) ** (-d / 2) if self.kernel == "gaussian" else (d + 2) / (2 * volume)
        result = []
        for place in self.at(x):
            width = self.sigma
            mean = self.shares(place, width, self.weight)[1] - math.log(self.weight.sum())
            result.append(mean + math.log(height * abs(np.linalg.det(self.metric)) / np.prod(width[:d])))
        unit = -sum(np.log(x[:, j] + offset) for j, (_, offset) in self.logs.items())
        return np.array(result) + sum(math.log(1 - rate) for rate in self.rates) + unit

    def trace(self):
        every, total = self.everyone.tobytes(), 0.0
        for i, place in enumerate(self.rows):
            row = self.line(place, self.sigma)[1]
            if self.linear and self.ridge > 0:  # the plane's slopes are of y too
                row = row + (place - row @ self.rows) @ self._slopes(every, every, None, of_units=True)
            total += row[i]
        return total

    def gradient(self, x, return_std=False, step=1e-5):
        """By differences, also of what each row's y has in the estimate."""
        outputs = self.y.shape[1]
        slope, error = (np.full((*x.shape, outputs), np.nan) for _ in range(2))
        for j in self.plain:
            more, less = x.copy(), x.copy()
            more[:, j] += step
            less[:, j] -= step
            for i, ends in enumerate(zip(self.at(more), self.at(less), self.at(x), strict=False)):
                lines = [self.line(place, self.sigma) for place in ends[:2]]
                slope[i, j] = (lines[0][0] - lines[1][0]) / (2 * step)
                change = (lines[0][1] - lines[1][1]) / (2 * step)
                if self.linear and self.ridge:  # the plane's slopes are of y too
                    every = self.everyone.tobytes()
                    rest = (ends[0] - ends[1]) / (2 * step) - change @ self.rows
                    change = change + rest @ self._slopes(every, every, None, of_units=True)
                if return_std:
                    square = self.noise(self._looked_at(ends[2], self.sigma))[1]
                    error[i, j] = np.sqrt(square * (change**2 / self.weight).sum())
        return error if return_std else slope

    def cubic(self, x, j, step=1e-5):
        """Return the rows (k, 2, m) of the height and the slope of cubics along a column of X, and log Σ W K (k,)."""
        ends = x.copy(), x.copy()
        for sign, cells in zip((1, -1), ends, strict=True):
            cells[:, j] += sign * step
        places, moved = self.at(x), (self.at(ends[0]) - self.at(ends[1])) / (2 * step)
        apart = self.rows - places[:, None]
        square = ((apart / self.sigma) ** 2).sum(2)
        with np.errstate(divide="ignore"):
            score = -square / 2 if self.kernel == "gaussian" else np.log(np.maximum(0, 1 - square))
            score, mass = score + np.log(self.weight), logsumexp(score + np.log(self.weight), axis=1)
        share = np.exp(score - np.maximum(mass, -1e300)[:, None])
        z, narrow = apart[..., : self.size], self.sigma[: self.size]
        if j in self.plain:
            c = self.plain.index(j)
            rate, others = moved[:, c], np.arange(self.size) != c
            terms = [apart[..., c] ** k for k in range(2, min(4, len(np.unique(self.rows[:, c].round(9)))))]
        else:  # sines and cosines of the angle to the query
            pair = np.flatnonzero(self.feature == self.size + [other for other, _ in self.coded].index(j))
            angle, start = (np.arctan2(*at[:, pair[::-1]].T) for at in (self.rows, places))
            angle = angle - start[:, None]
            count = len(np.unique((np.angle(np.exp(1j * angle[0])) + 9).round(9)))
            terms = [np.sin(angle), 1 - np.cos(angle), np.sin(2 * angle) - 2 * np.sin(angle)][: (count + 1) // 2]
            c, rate, others = self.size, np.full(len(x), 2 * np.pi / self.model.columns_[j].levels[0]), narrow > 0
        design = np.concatenate([np.ones((*share.shape, 1)), z, *(term[..., None] for term in terms)], 2)
        drawn = others * self.ridge * self.spread**2 * narrow**2 / (self.spread**2 + narrow**2)
        drawn = np.pad(drawn * np.exp(np.minimum(-mass, 690))[:, None], ((0, 0), (1, len(terms))))
        second = (share[..., None] * design**2).sum(1)
        unit = np.sqrt(np.where(second > 0, second, 1.0))
        root = np.sqrt(drawn / unit**2 + 1e-10 * (np.arange(design.shape[2]) > 0))  # the second ridge
        stacked = [np.sqrt(share)[..., None] * design / unit[:, None], root[:, None] * np.eye(design.shape[2])]
        inverse = np.linalg.pinv(np.concatenate(stacked, 1), rcond=1e-13)[..., : len(self.rows)]
        rows = (inverse * np.sqrt(share)[:, None] / unit[..., None])[:, [0, 1 + c]]
        rows[:, 1] *= rate[:, None]
        if self.linear and self.ridge > 0:  # the plane's slopes are of y too
            every = self.everyone.tobytes()
            rest = np.stack([places, moved], 1) - rows @ self.rows
            rows = rows + rest @ self._slopes(every, every, None, of_units=True)
        return rows, mass

    def near_noise(self, x, mass):
        """Return s² and ν (k,) at positions; s² is infinite with less than a tenth of a row in reach."""
        noise = [self.noise(self._looked_at(place, self.sigma)) for place in self.at(x)]
        square = np.where(mass > math.log(0.1), [square[0] for _, square, _ in noise], np.inf)
        return square, np.array([freedom for *_, freedom in noise])

    def derivative(self, x, j, level):
        rows, mass = self.cubic(x, j)
        square, freedom = self.near_noise(x, mass)
        center, error = rows[:, 1] @ self.y[:, 0], np.sqrt(square * (rows[:, 1] ** 2 / self.weight).sum(1))
        half = np.where(freedom >= 0.5, stdtrit(np.maximum(freedom, 0.5), (1 + level) / 2) * error, np.inf)
        return np.array([center, center - half, center + half])

    def minimum(self, x, j, sign):
        """Return the index of the least height at positions."""
        rows, mass = self.cubic(x, j)
        return np.where(mass > math.log(0.1), sign * rows[:, 0] @ self.y[:, 0], np.inf).argmin()

    def minima(self, x, j, sign, count=2000):
        """Return the indices of the minima of random curves, or None if no noise is known."""
        rows, mass = self.cubic(x, j)
        square, freedom = self.near_noise(x, mass)
        near, random = np.isfinite(square), np.random.default_rng(5)
        if not near.any():
            return None
        height, row = sign * rows[near, 0] @ self.y[:, 0], rows[near, 0] / np.sqrt(self.weight)
        mean = max(freedom[near].mean(), 1.0)
        draws = np.sqrt(square[near])[:, None] * (row @ random.normal(size=(row.shape[1], count)))
        draws /= np.sqrt(random.chisquare(mean, count) / mean)
        return np.flatnonzero(near)[(height[:, None] + draws).argmin(0)]


def band(curves, level):
    """Return the second of two groups' curves less the first, and half the width of the simultaneous band.

    A curve is a slow fit and positions with their column.
    """
    centers, errors, parts, freedoms = [], [], [], []
    for slow, x, j in curves:
        rows, mass = slow.cubic(x, j)
        square, freedom = slow.near_noise(x, mass)
        centers.append(rows[:, 0] @ slow.y[:, 0])
        with np.errstate(invalid="ignore"):
            parts.append(rows[:, 0] / np.sqrt(slow.weight) * np.sqrt(square)[:, None])
        errors.append(np.where(np.isfinite(square), np.sqrt((parts[-1] ** 2).sum(1)), np.inf))
        freedoms.append(freedom)
    error, near = np.hypot(*errors), np.isfinite(errors).all(0)
    if not near.any():
        return centers[1] - centers[0], error
    freedom = (error**4 / sum(e**4 / f for e, f in zip(errors, freedoms, strict=True)))[near].mean()
    path = np.hstack([-parts[0], parts[1]])[near] / error[near, None]
    length = np.arccos(np.clip((path[1:] * path[:-1]).sum(1), -1, 1)).sum()
    low, high = 0.0, 1e6
    for _ in range(200):  # the width at which the tube's probability is 1 − level
        width = (low + high) / 2
        outside = length / np.pi * (1 + width**2 / freedom) ** (-freedom / 2) + 2 * stdtr(freedom, -width)
        low, high = (width, high) if outside > 1 - level else (low, width)
    return centers[1] - centers[0], width * error


def widened(lower, upper, coverage, unknown):
    """Ends that are further apart by what missing cells could have said."""
    with np.errstate(invalid="ignore"):  # of infinite ends, which stay
        middle, half = (lower + upper) / 2, (upper - lower) / 2
    half = np.hypot(half, stdtrit(5, (1 + coverage) / 2) * np.sqrt(unknown[:, 0]))
    return np.array([np.where(np.isinf(lower), lower, middle - half), np.where(np.isinf(upper), upper, middle + half)])


def quantile(values, weight, level, more=1):
    """The least value that a share of the weights and of so much more is not above."""
    order = np.argsort(values)
    enough = np.cumsum(weight[order]) >= level * (weight.sum() + more) - 1e-9
    return values[order][enough.argmax()] if enough.any() else np.inf
