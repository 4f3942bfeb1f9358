from online_sao.benchmarks.stability.command import main

raise SystemExit(main())
