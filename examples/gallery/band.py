import numpy as np
from matplotlib.figure import Figure

from dikkat.regression import NadarayaWatson

random = np.random.default_rng(0)
x = np.sort(random.uniform(0, 5, 50))[:, None]
y = 2 * np.sin(x[:, 0]) + x[:, 0] ** 0.8 + random.normal(0, 0.5, 50)
model = NadarayaWatson(order="linear").fit(x, y)
places = np.linspace(0, 5, 200)[:, None]
axes = (figure := Figure((8, 4))).add_subplot(xlabel="x", ylabel="y")
axes.fill_between(places[:, 0], *model.confidence_band(places, level=0.95), alpha=0.3, label="95 % band")
axes.plot(places[:, 0], model.predict(places), label="local lines")
axes.plot(x[:, 0], y, "k.", label="fifty points")
axes.legend()
figure.savefig("band.png")
