package wire

import (
	"maps"
	"slices"

	"github.com/toolfleet/toolfleet/pkg/protocol"
)

// Kinds lists every kind, so that no test forgets one.
func Kinds() []protocol.Kind { return slices.Collect(maps.Keys(kinds)) }
