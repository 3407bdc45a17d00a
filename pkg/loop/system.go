package loop

import (
	"cmp"
	"strings"

	"github.com/toolfleet/toolfleet/pkg/protocol"
)

// DefaultSystem is the system prompt of a [Runner] that is given none.
const DefaultSystem = `You are an agent that gets things done with tools.

Your tools run in a workspace: a directory tree of its own, the same for every call of this conversation. Paths are relative to it.

- Find out before you act: read and search what is there instead of guessing.
- Tool calls in one reply run side by side where they touch different things, and in their order where they touch the same. Ask for independent calls together.
- A tool that fails tells you why. Read it, change something, and try again; do not repeat a call that failed the same way.
- A result of "outcome_unknown" may or may not have had effects: look before you run it again.
- Check your work with the means that the workspace offers, such as its tests.

When you are done, answer without a tool call: briefly, what you did and what came of it.`

// projectHead stands before what the workspace says.
const projectHead = `Instructions of the project, from files of the workspace. Follow them where the user does not say otherwise.`

// system is the system prompt with what the tools and the project have to say.
func (t *turnRun) system() string {
	parts := []string{cmp.Or(t.session.system, t.opts.System, DefaultSystem)}
	if hints := t.table.Hints(t.provider()); hints != "" {
		parts = append(parts, hints)
	}
	if len(t.session.project) > 0 {
		parts = append(parts, projectHead)
	}
	for _, file := range t.session.project {
		parts = append(parts, "# "+file.Name+"\n\n"+file.Text)
	}
	return strings.Join(parts, "\n\n")
}

// namesOf are the names of files, in their order.
func namesOf(files []protocol.InstructionFile) []string {
	var names []string
	for _, file := range files {
		names = append(names, validText(file.Name))
	}
	return names
}

// validFiles are files as they are journaled; nil stays nil.
func validFiles(files []protocol.InstructionFile) []protocol.InstructionFile {
	if files == nil {
		return nil
	}
	valid := make([]protocol.InstructionFile, len(files))
	for i, file := range files {
		valid[i] = protocol.InstructionFile{Name: validText(file.Name), Text: validText(file.Text)}
	}
	return valid
}
