package core

import "maps"

// Fair divides slots between tenants, by start-time fair queueing: each grant takes 1/weight of a
// virtual time, and the waiting tenant with the least goes first. So over any time in which
// tenants wait, their grants are in proportion to their weights, and a tenant that did not wait
// before has no credit. The zero value has the weight 1 for all. It is not safe for concurrent
// use.
type Fair[Tenant comparable] struct {
	// Weight returns the weight of a tenant, more than 0; nil is 1 for all.
	Weight func(Tenant) float64

	now    float64            // the virtual time: the start of the latest grant
	finish map[Tenant]float64 // where each tenant's last grant ends, if that is later
}

// maxTenants bounds the tenants that are remembered. When more of them wait, all are forgotten.
const maxTenants = 10_000

func (f *Fair[T]) start(t T) float64 { return max(f.now, f.finish[t]) }

// Before reports whether a grant to one tenant comes before one to another.
func (f *Fair[T]) Before(one, other T) bool { return f.start(one) < f.start(other) }

// Grant counts a grant to a tenant.
func (f *Fair[T]) Grant(t T) {
	weight := 1.0
	if f.Weight != nil {
		weight = f.Weight(t)
	}
	f.now = f.start(t)
	if f.finish == nil {
		f.finish = map[T]float64{}
	}
	f.finish[t] = f.now + 1/weight
	if len(f.finish) > maxTenants {
		maps.DeleteFunc(f.finish, func(_ T, end float64) bool { return end <= f.now })
	}
	if len(f.finish) > maxTenants {
		clear(f.finish)
	}
}
