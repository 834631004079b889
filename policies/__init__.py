# SPDX-License-Identifier: Apache-2.0
"""The policies that come with deepum, registered through the entry points any package can use."""
