package protocol

import "fmt"

// Tenant is for whom a call runs. Tenants share the slots of a pool's workers. "" is the tenant of
// calls that name none.
type Tenant string

// ParseTenant checks s: 1 to 32 lower-case letters, digits and '-'. The error wraps
// [ErrInvalidName].
func ParseTenant(s string) (Tenant, error) {
	return Tenant(s), checkToken("tenant", s, 32, fleetAlphabet())
}

// Priority says which calls of a tenant start first when slots are scarce. It changes neither the
// order of a lane nor the shares of tenants.
type Priority string

// The priorities.
const (
	Interactive Priority = "interactive" // a person waits for it
	Normal      Priority = "normal"      // the default, also written ""
	Batch       Priority = "batch"       // it may wait
)

// Priorities are all priorities, the first first.
func Priorities() []Priority { return []Priority{Interactive, Normal, Batch} }

// validateClass checks tenant and priority of a call.
func (c *Call) validateClass() error {
	if c.Tenant != "" {
		if _, err := ParseTenant(string(c.Tenant)); err != nil {
			return err
		}
	}
	switch c.Priority {
	case "", Interactive, Normal, Batch:
		return nil
	}
	return fmt.Errorf("priority %q: must be %q, %q or %q", c.Priority, Interactive, Normal, Batch)
}
