"""The version of matex_tf, and the tested versions of TensorFlow and Keras."""

__version__ = "1.0.0"
TRIED = {"tensorflow": "2.21.0", "keras": "3.15.1", "tf_keras": "2.21.0"}
"""The newest versions with which all tests have passed."""
OLDEST_TENSORFLOW = (2, 15)
