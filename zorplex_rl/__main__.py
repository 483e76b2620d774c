from zorplex_rl.cli import main

raise SystemExit(main())
