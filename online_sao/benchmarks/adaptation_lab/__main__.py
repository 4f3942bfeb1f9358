from online_sao.benchmarks.adaptation_lab.command import main

raise SystemExit(main())
