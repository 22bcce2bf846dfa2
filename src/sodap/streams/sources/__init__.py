"""Data sets, one file each; importing this package registers all of them."""

from sodap.streams.sources import aptos2019 as aptos2019
from sodap.streams.sources import core50 as core50
from sodap.streams.sources import ddr as ddr
from sodap.streams.sources import deepdrid as deepdrid
from sodap.streams.sources import derm7pt as derm7pt
from sodap.streams.sources import digits as digits
from sodap.streams.sources import drd as drd
from sodap.streams.sources import folder as folder
from sodap.streams.sources import ham10000 as ham10000
from sodap.streams.sources import idrid as idrid
from sodap.streams.sources import isic2017 as isic2017
from sodap.streams.sources import isic2020 as isic2020
from sodap.streams.sources import pacs as pacs
from sodap.streams.sources import table as table
