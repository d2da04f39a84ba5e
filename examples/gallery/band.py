import numpy as np
from matplotlib.figure import Figure

from dikkat.regression import KernelRegressor

random = np.random.default_rng(0)
x = np.sort(random.uniform(0, 5, 50))[:, None]
y = 2 * np.sin(x[:, 0]) + x[:, 0] ** 0.8 + random.normal(0, 0.5, 50)
model = KernelRegressor().fit(x, y)
places = np.linspace(0, 5, 200)[:, None]
axes = (figure := Figure((8, 4))).add_subplot(xlabel="x", ylabel="y")
axes.fill_between(places[:, 0], *model.predict_interval(places, coverage=0.9), alpha=0.3, label="90 % of new points")
axes.plot(places[:, 0], model.predict(places), label="local lines")
axes.plot(x[:, 0], y, "k.", label="fifty points")
axes.legend()
figure.savefig("band.png")
