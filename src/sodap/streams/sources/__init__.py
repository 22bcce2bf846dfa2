"""One file a data set; importing this package registers them all."""

from sodap.streams.sources import digits as digits
