from sklearn.utils.estimator_checks import parametrize_with_checks

from dikkat.regression import NadarayaWatson

KERNELS = ["gaussian", "epanechnikov", "boxcar", "triangular", "average"]


@parametrize_with_checks(
    [NadarayaWatson(kernel, order=order) for kernel in KERNELS for order in ("constant", "linear")]
)
def test_scikit_learn_checks(estimator, check):
    check(estimator)
