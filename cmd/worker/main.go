// Command worker executes tool calls for a fleet.
package main

import (
	"os"

	"github.com/toolfleet/toolfleet/internal/cli/workercmd"
	"github.com/toolfleet/toolfleet/internal/worker/kinds"
)

// version is set when the binary is linked.
var version = "development"

func main() { os.Exit(workercmd.Run(workercmd.FromProcess(version), kinds.Handlers{})) }
