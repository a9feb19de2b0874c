"""MNIST and CIFAR."""
