"""The image formats: MNIST and CIFAR."""
