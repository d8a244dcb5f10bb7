//go:build tools

package tools

import (
	_ "oras.land/oras/cmd/oras"
)
