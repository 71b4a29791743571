"""ResNet-18 on CIFAR-10: unlearning where theta has millions of entries. torch is imported by the modules, not here."""
