// Command worker executes tool calls for a fleet.
package main

import (
	"os"

	"github.com/toolfleet/toolfleet/internal/worker/kinds"
	"github.com/toolfleet/toolfleet/internal/workercmd"
)

// version is set when the binary is linked.
var version = "development"

func main() { os.Exit(workercmd.Run(workercmd.FromProcess(version), kinds.Handlers{})) }
