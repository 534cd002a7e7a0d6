// Volcano's own controllers and webhooks, beside which a scheduler of another make must work:
// `volcano controllers FLAGS` and `volcano webhooks FLAGS`, each with the flags of upstream's program.
package main

import (
	"fmt"
	"os"

	"github.com/spf13/pflag"
	utilfeature "k8s.io/apiserver/pkg/util/feature"
	cliflag "k8s.io/component-base/cli/flag"
	election "k8s.io/component-base/config/options"

	controllers "volcano.sh/volcano/cmd/controller-manager/app"
	controlled "volcano.sh/volcano/cmd/controller-manager/app/options"
	webhooks "volcano.sh/volcano/cmd/webhook-manager/app"
	asked "volcano.sh/volcano/cmd/webhook-manager/app/options"
	"volcano.sh/volcano/pkg/controllers/framework"
	_ "volcano.sh/volcano/pkg/controllers/garbagecollector"
	_ "volcano.sh/volcano/pkg/controllers/job"
	_ "volcano.sh/volcano/pkg/controllers/podgroup"
	_ "volcano.sh/volcano/pkg/controllers/queue"
	_ "volcano.sh/volcano/pkg/webhooks/admission/jobs/mutate"
	_ "volcano.sh/volcano/pkg/webhooks/admission/jobs/validate"
	_ "volcano.sh/volcano/pkg/webhooks/admission/podgroups/mutate"
	_ "volcano.sh/volcano/pkg/webhooks/admission/pods/mutate"
	_ "volcano.sh/volcano/pkg/webhooks/admission/pods/validate"
	_ "volcano.sh/volcano/pkg/webhooks/admission/queues/mutate"
	_ "volcano.sh/volcano/pkg/webhooks/admission/queues/validate"
)

func main() {
	parts := map[string]func() error{"controllers": control, "webhooks": admit}
	run := parts[os.Args[1]]
	os.Args = os.Args[1:]
	if err := run(); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func control() error {
	flags, chosen, names := pflag.CommandLine, controlled.NewServerOption(), []string{}
	framework.ForeachController(func(each framework.Controller) { names = append(names, each.Name()) })
	chosen.AddFlags(flags, names)
	utilfeature.DefaultMutableFeatureGate.AddFlag(flags)
	election.BindLeaderElectionFlags(&chosen.LeaderElection, flags)
	cliflag.InitFlags()
	if err := chosen.CheckOptionOrDie(); err != nil {
		return err
	}
	return controllers.Run(chosen)
}

func admit() error {
	chosen := asked.NewConfig()
	chosen.AddFlags(pflag.CommandLine)
	utilfeature.DefaultMutableFeatureGate.AddFlag(pflag.CommandLine)
	cliflag.InitFlags()
	if err := chosen.ParseCAFiles(nil); err != nil {
		return err
	}
	return webhooks.Run(chosen)
}
