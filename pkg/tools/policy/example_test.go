package policy_test

import (
	"fmt"

	"github.com/toolfleet/toolfleet/pkg/tools"
	"github.com/toolfleet/toolfleet/pkg/tools/policy"
	"github.com/toolfleet/toolfleet/pkg/tools/toolset"
)

// Rules in YAML, as an operator writes them, and what they say to three calls. A session is
// bound by them as loop.Options.Policy.
func ExampleJudge_Judge() {
	rules, err := policy.Parse("rules.yaml", []byte(`
commands: {deny: [git push]}
paths: {write: [src], except: [bash]}
approval: {tools: [bash]}
`))
	if err != nil {
		fmt.Println(err)
		return
	}
	judge, err := policy.New(rules)
	if err != nil {
		fmt.Println(err)
		return
	}
	table, err := tools.NewTable(toolset.Core()...)
	if err != nil {
		fmt.Println(err)
		return
	}
	for _, call := range [][2]string{
		{"write", `{"path":"README.md","content":""}`},
		{"bash", `{"command":"cd src && git push"}`},
		{"bash", `{"command":"make test"}`},
	} {
		_, plan, refusal := table.Plan(tools.Scope{Session: "demo", Sandbox: "demo"}, call[0], call[1])
		if refusal != nil {
			fmt.Println(refusal)
			continue
		}
		verdict := judge.Judge(policy.Call{Tool: call[0], Plan: plan})
		fmt.Println(verdict.Decision, verdict.Rule)
	}
	// Output:
	// denied paths.write
	// denied commands.deny
	// ask approval.tools
}

// Faults have their line.
func ExampleParse() {
	_, err := policy.Parse("rules.yaml", []byte("max_calls: many\ntool: {deny: [bash]}\n"))
	fmt.Println(err)
	// Output:
	// rules.yaml:1: `many` is not what belongs here: it must be a whole number
	// rules.yaml:2: there is no field "tool"; the fields are tools, commands, paths, max_calls, max_calls_of, min_level, approval, at_most_once
}
