COPY public.benchmark_results (id, workflow_run_id, config_id, benchmark_type, date, isl, osl, conc, image, metrics, error, server_log_id) FROM stdin;
1	1	1	single_turn	2026-06-01	1024	1024	8	\N	{"mean_tpot": 0.0052, "median_tpot": 0.0051, "tput_per_gpu": 1500.0, "median_intvty": 196.07843137254902}	\N	\N
2	2	1	single_turn	2026-07-18	1024	1024	8	vllm/vllm-openai-rocm:v0.22.0	{"note": "a\\\\tb", "mean_tpot": 0.00495, "median_tpot": 0.00492827, "median_ttft": 0.06, "tput_per_gpu": 1549.329304, "median_intvty": 202.911}	\N	\N
3	2	1	single_turn	2026-07-18	1024	1024	16	vllm/vllm-openai-rocm:v0.22.0	{}	server died	\N
4	2	2	single_turn	2026-07-18	1024	1024	8	\N	{"median_tpot": 0.0051, "tput_per_gpu": 1500.0}	\N	\N
5	2	1	agentic_traces	2026-07-18	1024	1024	4	\N	{"mean_tpot": 0.0051, "tput_per_gpu": 1500.0}	\N	\N
6	2	3	single_turn	2026-07-18	1024	1024	8	vllm/vllm-openai:v0.22.0	{"median_tpot": 0.0028, "tput_per_gpu": 700.0}	\N	\N
\.
COPY public.configs (id, hardware, framework, model, "precision", spec_method, disagg, is_multinode, prefill_tp, prefill_ep, prefill_dp_attention, prefill_num_workers, decode_tp, decode_ep, decode_dp_attention, decode_num_workers, num_prefill_gpu, num_decode_gpu) FROM stdin;
1	mi355x	vllm	gptoss120b	fp4	none	f	f	2	1	f	0	2	1	f	0	2	2
2	mi355x	vllm	gptoss120b	fp4	none	t	f	1	1	f	0	1	1	f	0	1	1
3	h100	vllm	gptoss120b	fp4	none	f	f	8	1	f	0	8	1	f	0	8	8
\.
