package toolset_test

import (
	"fmt"

	"github.com/toolfleet/toolfleet/pkg/tools"
	"github.com/toolfleet/toolfleet/pkg/tools/toolset"
)

// Toolsets by their names, as flags have them.
func ExampleNamed() {
	all, err := toolset.Named("files", "help")
	if err != nil {
		fmt.Println(err)
		return
	}
	table, err := tools.NewTable(all...)
	if err != nil {
		fmt.Println(err)
		return
	}
	fmt.Println(table.Names())
	_, err = toolset.Named("core", "kore")
	fmt.Println(err)
	// Output:
	// [edit_file list_files read_file search_files tool_help write_file]
	// unknown toolset "kore": must be one of agents, ask, channels, code_execution, core, core-shell, files, help, image_generation, jobs, memory, openrath, scratchpad, sessions, smithers, triggers, web, web_search; did you mean "core"?
}
