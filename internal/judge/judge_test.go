package judge_test

import (
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/toolfleet/toolfleet/internal/judge"
	"github.com/toolfleet/toolfleet/pkg/protocol"
)

// Two principals never have one id, whatever their names are.
func TestPrincipal_IDsAreDistinct(t *testing.T) {
	t.Parallel()
	ids := map[string]bool{}
	for _, who := range []judge.Principal{{}, {Name: "a"}, {Role: "a"}, {Tenant: "a"}, {Name: "a", Role: "b"}, {Name: `a","b`}, {Name: "a", Tenant: "b"}} {
		require.False(t, ids[who.ID()], who)
		ids[who.ID()] = true
	}
}

func TestParseRole_ReadsOldFiles(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]judge.Role{"read": judge.RoleRead, "use": judge.RoleRun, "run": judge.RoleRun, "operate": judge.RoleOperate} {
		role, err := judge.ParseRole(text)
		require.NoError(t, err)
		require.Equal(t, want, role)
	}
	_, err := judge.ParseRole("admin")
	require.EqualError(t, err, `role "admin": must be read, run or operate`)
}

// A principal and what it makes name each other.
func TestOwner_IsItsPrincipal(t *testing.T) {
	t.Parallel()
	for _, who := range []judge.Principal{
		{Tenant: "acme"}, {Known: judge.ByToken, Name: "ann", Tenant: "acme", Role: judge.RoleRead}, {Known: judge.ByKey, Name: "a:b", Tenant: "acme"},
	} {
		again := judge.PrincipalOf(who.Owner())
		require.Equal(t, who.Owner(), again.Owner())
		require.Equal(t, judge.RoleRun, again.Role, "a session operates nothing")
	}
}

// A record cannot name the operator, or anyone else, by a text that is no principal's.
func TestCheckBy_NamesTheFault(t *testing.T) {
	t.Parallel()
	for _, by := range []string{"", "token:ann", "key:0123", "token:a:b", "token:" + strings.Repeat("n", 256)} {
		require.NoError(t, judge.CheckBy(by), by)
	}
	for _, by := range []string{"ann", ":ann", "token:", "operator:x", "token:a b", "token:a\x1b[2J", "token:\xff", "token:" + strings.Repeat("n", 257)} {
		require.ErrorContains(t, judge.CheckBy(by), "by ", by)
		who := judge.PrincipalOf(judge.Owner{By: by})
		require.NotEqual(t, judge.ByProcess, who.Known, by)
		other := judge.Object{Kind: judge.Session, Owner: judge.Owner{Tenant: "acme"}}
		require.ErrorIs(t, judge.May(who, judge.Use, other), judge.ErrRefused, "it is of the default tenant")
	}
}

// Only what belongs to another tenant is hidden.
func TestRefusal_Hides(t *testing.T) {
	t.Parallel()
	ann := judge.Principal{Known: judge.ByToken, Name: "ann", Tenant: "acme", Role: judge.RoleRead}
	for on, want := range map[judge.Object]bool{
		{Kind: judge.Session, Owner: judge.Owner{Tenant: "other"}}: true,
		{Kind: judge.Session}: true,
		{Kind: judge.Session, Owner: judge.Owner{Tenant: "acme"}}: false,
		{Kind: judge.Limit, Owner: judge.TheFleet()}:              false,
	} {
		var refusal *judge.RefusalError
		require.ErrorAs(t, judge.May(ann, judge.Change, on), &refusal)
		require.Equal(t, want, refusal.Hides(), on)
	}
}

// TestMay_EveryRule tries every rule with each role, on objects of its own, of its tenant, of
// another tenant, and of the whole fleet: what is not granted is refused, and the refusal names the
// act, the object and what is needed.
func TestMay_EveryRule(t *testing.T) {
	t.Parallel()
	at := func(r judge.Role) int { return slices.Index(judge.Roles(), r) }
	refused := func(who judge.Principal, act judge.Act, on judge.Object, needs string) {
		t.Helper()
		err := judge.May(who, act, on)
		require.ErrorIs(t, err, judge.ErrRefused, "%s: %s %v", who, act, on)
		for _, part := range []string{string(act), string(on.Kind), on.ID, needs, who.By()} {
			require.ErrorContains(t, err, part)
		}
	}
	acts, named := 0, map[judge.Act]bool{}
	for _, rule := range judge.Rules() {
		named[rule.Act] = true
		for _, kind := range rule.Kinds {
			acts++
			for _, role := range judge.Roles() {
				ann := judge.Principal{Known: judge.ByToken, Name: "ann", Role: role, Tenant: "acme"}
				own := judge.Object{Kind: kind, ID: "it", Owner: ann.Owner()}
				bobs, other, old := own, own, own
				bobs.Owner.By, other.Owner.Tenant, old.Owner = "token:bob", "other", judge.Owner{Tenant: "acme"}
				for on, needs := range map[judge.Object]judge.Role{own: rule.Own, bobs: rule.Others, old: rule.Others} {
					if needs != "" && at(role) >= at(needs) {
						require.NoError(t, judge.May(ann, rule.Act, on), "%s: %s %v", ann, rule.Act, on)
					} else {
						refused(ann, rule.Act, on, "role")
					}
				}
				refused(ann, rule.Act, other, "tenant other")
				key := ann
				key.Known, key.Name = judge.ByKey, "k"
				refused(key, rule.Act, other, "tenant other")
				refused(judge.Principal{Tenant: "acme"}, rule.Act, other, "tenant other")
				refused(judge.Principal{Known: judge.ByToken, Name: "cid", Role: role}, rule.Act, own, "tenant acme") // of the default tenant
				fleets := judge.Object{Kind: kind, ID: "it", Owner: judge.TheFleet()}
				if rule.Act != judge.See && rule.Act != judge.Use {
					refused(ann, rule.Act, fleets, "the operator")
				}
				expired := ann
				expired.Expires = time.Now()
				refused(expired, rule.Act, own, "expired")
				expired.Expires = time.Now().Add(time.Hour)
				require.Equal(t, judge.May(ann, rule.Act, own) == nil, judge.May(expired, rule.Act, own) == nil)
				require.NoError(t, judge.May(judge.Principal{}, rule.Act, other), "the operator")
			}
		}
	}
	require.Len(t, named, len(judge.Acts()))
	require.Equal(t, 45, acts, "a new act on a kind belongs into docs/policy.md, too")
	refused(judge.Principal{}, judge.Remove, judge.Object{Kind: judge.Call, ID: "c"}, "an act that a rule names")
}

// Each act of an interface has a rule, and each kind of objects an act by which it is made.
func TestInterfaces_JudgeByRules(t *testing.T) {
	t.Parallel()
	for _, way := range judge.Interfaces() {
		require.NotEmpty(t, way.Judged, way.Name)
		for _, on := range way.Judged {
			require.NoError(t, judge.May(judge.Principal{}, on.Act, judge.Object{Kind: on.Kind}), "%s: %v", way.Name, on)
		}
	}
}

// What a context says is what the interface has set in it, and nothing else.
func TestJudge_IsOfTheContext(t *testing.T) {
	t.Parallel()
	on := judge.Object{Kind: judge.Session, ID: "s", Owner: judge.Owner{Tenant: "acme", By: "token:ann"}}
	require.NoError(t, judge.Judge(t.Context(), judge.Remove, on))
	require.False(t, judge.Bounded(t.Context()))
	for _, who := range []judge.Principal{{Tenant: "other"}, {Role: judge.RoleRun}, {Known: judge.ByToken, Name: "bob"}, {Expires: time.Now()}} {
		ctx := judge.With(t.Context(), who)
		require.True(t, judge.Bounded(ctx))
		var refusal *judge.RefusalError
		require.ErrorAs(t, judge.Judge(ctx, judge.Remove, on), &refusal)
		require.Equal(t, who, refusal.Who)
	}
	require.Equal(t, judge.DefaultTenant, protocol.Tenant("default"))
}
