from sklearn.utils.estimator_checks import parametrize_with_checks

from dikkat.regression import NadarayaWatson

KERNELS = ["gaussian", "epanechnikov", "boxcar", "triangular", "average"]
BOTH = ["constant", "linear"]


@pytest.mark.filterwarnings("ignore:.*in reach of the.*:UserWarning")  # rows of weight 0 far from all others
@parametrize_with_checks([NadarayaWatson(kernel, order=order) for kernel in KERNELS for order in BOTH])
def test_scikit_learn_checks(estimator, check):
    check(estimator)
