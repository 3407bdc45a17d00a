package manifest_test

import (
	"fmt"

	"github.com/toolfleet/toolfleet/pkg/tools"
	"github.com/toolfleet/toolfleet/pkg/tools/manifest"
)

// A manifest makes a tool like those that are made in Go. [Open] reads a folder of them, again
// and again.
func ExampleParse() {
	tool, problems := manifest.Parse("refund.yaml", []byte(`
name: refund
description: Pay money back.
parameters:
  type: object
  properties: {account: {type: string}}
  required: [account]
handler: refund
resources: [{key: "account/{account}"}]
delivery: at_most_once
`))
	if len(problems) > 0 {
		fmt.Println(problems)
		return
	}
	table, err := tools.NewTable(tool)
	if err != nil {
		fmt.Println(err)
		return
	}
	_, plan, refusal := table.Plan(tools.Scope{Session: "demo", Sandbox: "demo"}, "refund", `{"account":"acme"}`)
	if refusal != nil {
		fmt.Println(refusal)
		return
	}
	fmt.Println(plan.Resources[0].Key, plan.Delivery)

	_, problems = manifest.Parse("broken.yaml", []byte("name: refund\ndescription: x\nhandler: refund\ntimeout: soon\n"))
	for _, problem := range problems {
		fmt.Println(problem)
	}
	// Output:
	// account/acme at_most_once
	// broken.yaml:4: timeout "soon": must be a time such as 90s or 2m
}
